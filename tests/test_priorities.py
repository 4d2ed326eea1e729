"""Prioritised windows: which there are, how often each is drawn, what it weighs, and what it is worth afterwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undistracted.data import Batch
from undistracted.priorities import Windows, admit, rate, windows
from undistracted.replay import add, empty

BEFORE, AFTER, CAPACITY, ENVS = 2, 3, 9, 2
ADD = jax.jit(lambda replay, row: admit(add(replay, row), BEFORE, AFTER))
DRAW = jax.jit(windows, static_argnums=(2, 3, 4))


def row(t: int, first) -> Batch:
    env = np.arange(ENVS)
    obs = np.zeros((ENVS, 64, 64, 3), np.uint8)
    return Batch(obs, np.stack([env * 0 + t, env], -1).astype(np.float32), env * 0.0 + t, np.asarray(first))


def filled(firsts):
    """A ring after these rows; environment 1's episodes begin where 0's do, and at every seventh row too."""
    replay = empty(CAPACITY, ENVS, 2, prioritised=True)
    replay = replay._replace(rows=replay.rows._replace(obs=replay.rows.obs[..., :1, :1, :1]))
    for t, first in enumerate(firsts):
        small = row(t, [first, first or t % 7 == 0])
        replay = ADD(replay, small._replace(obs=small.obs[..., :1, :1, :1]))
    return replay


def windows_by_hand(firsts, env: int) -> set[int]:
    """Numbers of the rows whose windows lie in the ring and in one episode."""
    first = [f or (env == 1 and t % 7 == 0) for t, f in enumerate(firsts)]
    oldest = max(0, len(first) - CAPACITY)
    begin = oldest + BEFORE if oldest else 0  # before the ring is full, nothing was lost
    starts = range(begin, len(first) - AFTER)
    return {t for t in starts if not any(first[t + 1 : t + AFTER + 1])}


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4).map(lambda x: x == 0), min_size=1, max_size=25))
def test_the_windows_that_have_priority_are_those_within_ring_and_episode(firsts):
    replay = filled(firsts)
    for env in range(ENVS):
        number = np.asarray(replay.rows.action[:, env, 0], int)
        known = set(number[np.asarray(replay.priority[:, env]) > 0].tolist())
        assert known == windows_by_hand(firsts, env)
    assert set(np.unique(replay.priority).tolist()) <= {0.0, 1.0}


def test_new_windows_get_the_greatest_priority_there_is():
    replay = filled([t == 0 for t in range(6)])
    replay = replay._replace(priority=replay.priority.at[0, 1].set(3.5))
    replay = ADD(replay, row(6, [False] * 2)._replace(obs=np.zeros((ENVS, 1, 1, 1), np.uint8)))
    np.testing.assert_array_equal(replay.priority[3], [3.5, 3.5])


def test_windows_are_drawn_in_proportion_and_weighted_against_it():
    replay, draws = filled([t % 8 == 0 for t in range(14)]), 20_000
    valid = np.asarray(replay.priority) > 0
    error = np.where(valid, np.arange(1, valid.size + 1).reshape(valid.shape), 0.0)
    replay = replay._replace(priority=jnp.float32(error**0.6))
    got = DRAW(replay, jax.random.key(1), BEFORE, AFTER, draws)
    share = (error**0.6 / (error**0.6).sum()).reshape(-1)
    counts = np.bincount(got.place, minlength=share.size)
    assert (counts[share == 0] == 0).all() and (share > 0).sum() == 6
    chi_square = ((counts - draws * share)[share > 0] ** 2 / (draws * share)[share > 0]).sum()
    assert 0.2 < chi_square < 20.5  # the 0.1 % and 99.9 % quantiles for 5 degrees of freedom
    weight = share[got.place] ** -0.4
    np.testing.assert_allclose(got.weight, weight / weight.max(), rtol=1e-5)


@pytest.mark.parametrize("chance", [0.0, 1.0])  # 1 is what rounding may make of a little less
def test_the_edges_of_chance_draw_the_only_window(monkeypatch, chance):
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, chance))
    replay = filled([True])
    replay = replay._replace(priority=jnp.zeros((CAPACITY, ENVS)).at[CAPACITY - 1, ENVS - 1].set(2.0))
    got = jax.jit(lambda replay: windows(replay, jax.random.key(0), BEFORE, AFTER, 1))(replay)
    assert (int(got.place[0]), float(got.weight[0])) == (CAPACITY * ENVS - 1, 1.0)


def test_a_drawn_window_is_the_rows_around_its_place():
    replay = filled([t % 8 == 0 for t in range(14)])
    got = jax.tree.map(np.asarray, DRAW(replay, jax.random.key(0), BEFORE, AFTER, 64))
    number, env = got.rows.action[..., 0].astype(int), got.rows.action[..., 1].astype(int)
    assert number.shape == (BEFORE + 1 + AFTER, 64)
    own = replay.rows.action[got.place // ENVS, got.place % ENVS]
    np.testing.assert_array_equal(number[BEFORE], own[:, 0])
    np.testing.assert_array_equal(number - number[:1], np.arange(BEFORE + 1 + AFTER)[:, None] + 0 * number)
    np.testing.assert_array_equal(env, np.broadcast_to(own[:, 1], env.shape))
    assert not got.rows.first[BEFORE + 1 :].any()


def test_errors_become_priorities_and_of_a_window_drawn_twice_the_greater():
    priority = jnp.ones((4, ENVS)).at[3].set(0)
    drawn = Windows(None, jnp.array([1.0, 0.5, 1.0, 0.0]), jnp.array([2, 5, 2, 7]))
    new = np.asarray(rate(priority, drawn, jnp.array([8.0, 0.0, 2.0, 9.0])))
    expected = np.ones((4, ENVS))
    expected[3], expected[1, 0], expected[2, 1] = 0, 8**0.6, 1e-6**0.6
    np.testing.assert_allclose(new, expected, rtol=1e-4)


def test_an_empty_ring_gives_windows_without_weight():
    got = DRAW(filled([True]), jax.random.key(0), BEFORE, AFTER, 4)
    np.testing.assert_array_equal(got.weight, 0)
    assert not np.asarray(rate(jnp.zeros((CAPACITY, ENVS)), got, jnp.ones(4))).any()
