"""Random shifts against padding and cutting out."""

import jax
import jax.numpy as jnp
import numpy as np

from undistracted.augment import random_shift


def test_each_picture_is_a_cut_of_itself_with_its_edge_repeated():
    most, n = 2, 200
    pictures = np.random.default_rng(0).integers(0, 256, (2, n // 2, 6, 7, 4), np.uint8)
    moved = np.asarray(jax.jit(random_shift, static_argnums=2)(jax.random.key(0), jnp.asarray(pictures), most))
    assert moved.dtype == np.uint8 and moved.shape == pictures.shape
    shifts = []
    for before, after in zip(pictures.reshape(n, 6, 7, 4), moved.reshape(n, 6, 7, 4), strict=True):
        padded = np.pad(before, [(most, most), (most, most), (0, 0)], mode="edge")
        cuts = {(i, j): padded[i : i + 6, j : j + 7] for i in range(5) for j in range(5)}
        shifts += [[shift for shift, cut in cuts.items() if np.array_equal(cut, after)]]
    assert all(len(found) == 1 for found in shifts), "exactly one shift, of all channels alike"
    assert len({found[0] for found in shifts}) == 25, "all shifts occur"


def test_no_shift_is_the_picture(key):
    pictures = jax.random.randint(key, (3, 5, 5, 2), 0, 256).astype(jnp.uint8)
    np.testing.assert_array_equal(random_shift(key, pictures, 0), pictures)
