"""Random shifts against padding and cutting out."""

import jax
import jax.numpy as jnp
import numpy as np

from undistracted.agents import latent, make_agent
from undistracted.augment import random_shift
from undistracted.data import Batch
from undistracted.replay import add, empty


def shifts_of(before, after, most: int) -> list[tuple[int, int]]:
    """How far each of n pictures was moved; exactly one answer fits, all channels alike, its edge repeated."""
    shifts, (h, w) = [], before.shape[1:3]
    for one, moved in zip(before, after, strict=True):
        padded = np.pad(one, [(most, most), (most, most), (0, 0)], mode="edge")
        places = [(i, j) for i in range(2 * most + 1) for j in range(2 * most + 1)]
        fits = [(i, j) for i, j in places if np.array_equal(padded[i : i + h, j : j + w], moved)]
        assert len(fits) == 1
        shifts += fits
    return shifts


def test_each_picture_is_a_cut_of_itself_with_its_edge_repeated():
    most, n = 2, 200
    pictures = np.random.default_rng(0).integers(0, 256, (2, n // 2, 6, 7, 4), np.uint8)
    moved = np.asarray(jax.jit(random_shift, static_argnums=2)(jax.random.key(0), jnp.asarray(pictures), most))
    assert moved.dtype == np.uint8 and moved.shape == pictures.shape
    shifts = shifts_of(pictures.reshape(n, 6, 7, 4), moved.reshape(n, 6, 7, 4), most)
    assert len(set(shifts)) == 25, "all shifts occur"


def test_no_shift_is_the_picture(key):
    pictures = jax.random.randint(key, (3, 5, 5, 2), 0, 256).astype(jnp.uint8)
    np.testing.assert_array_equal(random_shift(key, pictures, 0), pictures)


def test_world_models_learn_from_moved_pictures_of_the_same_rows(tiny, key):
    rng, replay = np.random.default_rng(0), empty(12, 1, 2)
    for t in range(12):
        obs, action = rng.integers(0, 256, (1, 64, 64, 3), np.uint8), rng.uniform(-1, 1, (1, 2)).astype(np.float32)
        replay = add(replay, Batch(obs, action, np.float32([t]), np.array([t == 0])))
    agents = [make_agent(tiny(length=6, batch=4, shift=shift), 2) for shift in (0, 3)]
    still, moved = (jax.tree.map(np.asarray, agent.sample(replay, key)) for agent in agents)
    for name in ("action", "reward", "first"):
        np.testing.assert_array_equal(getattr(still, name), getattr(moved, name))
    shifts = shifts_of(still.obs.reshape(24, 64, 64, 3), moved.obs.reshape(24, 64, 64, 3), 3)
    assert len(set(shifts)) > 12, "each picture of a sequence by itself"


def test_a_pictures_shift_does_not_tell_its_place(tiny, key, monkeypatch):
    """Places are drawn from the splits of a key, and a key's second split is `fold_in(key, 1)`."""
    keys = {}
    monkeypatch.setattr(latent, "sequences", lambda _, key, *__: keys.update(place=key) or Batch.zeros((2,), 2))
    monkeypatch.setattr(latent, "random_shift", lambda key, *_: keys.update(shift=key))
    make_agent(tiny(shift=3), 2).sample(None, key)
    drawn = jnp.stack([x for own in keys.values() for x in (own, *jax.random.split(own))])
    assert len(np.unique(jax.random.key_data(drawn), axis=0)) == 6
