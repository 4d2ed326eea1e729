"""Weights in the order in which kernels take them."""

import jax
import jax.numpy as jnp
import numpy as np

from undistracted.kernels.weights import columns, pack, packed


def test_pack_gives_each_thread_what_the_tensor_cores_want():
    weight = np.arange(1, 18 * 9 + 1).reshape(18, 9)
    filled = np.pad(weight, ((0, 14), (0, 7)))
    vector = pack(weight).reshape(2, 2, 32, 4)  # slab, tile, thread, what it holds
    for slab, tile, thread in np.ndindex(vector.shape[:3]):
        n, q = divmod(thread, 4)
        rows = slab * 16 + np.array([2 * q, 2 * q + 1, 2 * q + 8, 2 * q + 9])
        np.testing.assert_array_equal(vector[slab, tile, thread], filled[rows, tile * 8 + n])


def test_packed_moves_all_weights_by_one_gather():
    a, b = jnp.arange(6.0).reshape(2, 3), jnp.arange(4.0).reshape(1, 4)

    def arrange(a, b):
        return np.concatenate([columns(b, 2, 3).ravel(), a.T.ravel()])

    found = packed(arrange, [a, b])
    assert found.tolist() == [0, 1, 0, 2, 3, 0, 0, 3, 1, 4, 2, 5]
    assert str(jax.make_jaxpr(lambda a, b: packed(arrange, [a, b]))(a, b)).count("gather[") == 1
