"""The ring by rows that carry their own number, so that every misplaced entry shows."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from undistracted.data import Batch
from undistracted.replay import add, empty, extend, push, read, sequences, stack, transitions

ADD, EXTEND, READ = jax.jit(add), jax.jit(extend), jax.jit(read)
SAMPLE = jax.jit(sequences, static_argnums=(2, 3))


def numbered(start: int, stop: int, envs: int) -> Batch:
    """Rows start..stop-1, the number of row and environment in every field; each fifth row is a first one."""
    row, env = np.meshgrid(np.arange(start, stop), np.arange(envs), indexing="ij")
    obs = np.zeros((*row.shape, 64, 64, 3), np.uint8)
    obs[..., 0, 0, 0], obs[..., -1, -1, -1] = row, env
    action = np.stack([row, -env], -1).astype(np.float32)
    return Batch(obs, action, (1000 * env + row).astype(np.float32), (row + env) % 5 == 0)


def assert_equal(actual, expected):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


# Capacity, environments, length: few enough to compile each once, among them full-length and one-row sequences.
SHAPES = st.sampled_from([(2, 1, 1), (3, 2, 3), (5, 1, 2), (7, 3, 3), (8, 2, 7), (9, 2, 4)])
RINGS = SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), st.integers(shape[2], 3 * shape[0])))


@settings(max_examples=60)
@given(RINGS, st.integers(0, 2**31 - 1))
def test_sequences_are_consecutive_rows_of_one_environment(ring, seed):
    (capacity, envs, length), written = ring
    everything = numbered(0, written, envs)
    replay = empty(capacity, envs, 2)
    for i in range(written):
        replay = ADD(replay, jax.tree.map(lambda x, i=i: x[i], everything))
    got = jax.tree.map(np.asarray, SAMPLE(replay, jax.random.key(seed), length, 16))
    row, env = got.action[..., 0].astype(int), -got.action[..., 1].astype(int)
    assert row.shape == (length, 16)
    np.testing.assert_array_equal(row - row[:1], np.broadcast_to(np.arange(length)[:, None], row.shape))
    np.testing.assert_array_equal(env - env[:1], 0)
    assert row.min() >= max(0, written - capacity)
    assert row.max() < written
    assert_equal(got, jax.tree.map(lambda x: x[row, env], everything))


def test_sequences_are_uniform_over_starts_and_environments():
    capacity, envs, length, written, draws = 8, 3, 3, 13, 18_000
    replay = EXTEND(empty(capacity, envs, 2), numbered(0, written, envs))
    replay = replay._replace(rows=replay.rows._replace(obs=replay.rows.obs[..., :1, :1, :1]))  # for memory's sake
    got = SAMPLE(replay, jax.random.key(0), length, draws)
    start, env = np.asarray(got.action[0, :, 0], int) - (written - capacity), -np.asarray(got.action[0, :, 1], int)
    counts = np.bincount(start * envs + env, minlength=18)
    assert counts.shape == (18,)  # 6 starts x 3 environments
    chi_square = ((counts - draws / 18) ** 2 / (draws / 18)).sum()
    assert 4.4 < chi_square < 40.8  # the 0.1 % and 99.9 % quantiles for 17 degrees of freedom


def test_sampling_depends_on_the_key_alone():
    replay = EXTEND(empty(8, 2, 2), numbered(0, 8, 2))
    a, b, c = (SAMPLE(replay, jax.random.key(seed), 3, 16).reward for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


def test_read_finds_rows_by_number_after_the_ring_has_wrapped():
    replay = EXTEND(empty(7, 2, 2), numbered(0, 17, 2))
    assert_equal(READ(replay, jnp.arange(10, 17)), numbered(10, 17, 2))
    assert_equal(READ(replay, jnp.array([15, 12])), jax.tree.map(lambda x: x[jnp.array([5, 2])], numbered(10, 17, 2)))


@settings(max_examples=10)
@given(st.integers(0, 9), st.integers(1, 3))
def test_extend_is_add_row_by_row(before, chunks):
    """From any position of the ring, in chunks of 5 rows; a ring of 4 loses rows of the chunk itself."""
    one = many = EXTEND(empty(4, 2, 2), numbered(0, before, 2)) if before else empty(4, 2, 2)
    for chunk in range(chunks):
        rows = numbered(before + 5 * chunk, before + 5 * (chunk + 1), 2)
        many = EXTEND(many, rows)
        for i in range(5):
            one = ADD(one, jax.tree.map(lambda x, i=i: x[i], rows))
    assert_equal(many, one)
    written = before + 5 * chunks
    assert int(one.written) == written
    assert_equal(READ(one, jnp.arange(written - 4, written)), numbered(written - 4, written, 2))


def test_a_new_ring_is_empty_and_as_large_as_asked():
    replay = empty(7, 3, 2)
    assert replay.capacity == 7
    assert int(replay.written) == 0
    shapes = [(x.shape, x.dtype) for x in replay.rows]
    expected = [((7, 3, 64, 64, 3), "uint8"), ((7, 3, 2), "float32"), ((7, 3), "float32"), ((7, 3), "bool")]
    assert shapes == expected


def stacked_by_hand(first, t: int, frames: int) -> list[int]:
    """Rows whose pictures make up the stack of row t, oldest first."""
    rows = [t]
    while len(rows) < frames:
        rows.insert(0, rows[0] if first[rows[0]] else rows[0] - 1)
    return rows


@settings(max_examples=30)
@given(st.lists(st.booleans(), min_size=6, max_size=6), st.sampled_from([1, 2, 3, 4]))
def test_stacks_repeat_the_first_frame_and_mix_no_episodes(first, frames):
    rows = numbered(0, 6, 1)._replace(first=np.array(first)[:, None])
    got = stack(jax.tree.map(jnp.asarray, rows), frames)
    assert got.obs.shape == (7 - frames, 1, 64, 64, 3 * frames)
    carry = jnp.zeros((1, 64, 64, 3 * frames), jnp.uint8)
    for t in range(6):
        carry = push(carry, rows.obs[t], rows.first[t])
        if t >= frames - 1:
            shown = np.asarray(got.obs[t - frames + 1, 0, 0, 0, ::3])
            np.testing.assert_array_equal(shown, stacked_by_hand(first, t, frames))
            np.testing.assert_array_equal(got.action[t - frames + 1], rows.action[t])
            if any(first[: t + 1]):  # the carry begins empty, a stack with what was before
                np.testing.assert_array_equal(carry, got.obs[t - frames + 1])


def test_transitions_are_all_steps_within_episodes_alike():
    """Episodes end at the time limit: their last step is a transition like any other, from a ring that went round."""
    capacity, envs, written, draws = 12, 2, 20, 16_000
    everything = numbered(0, written, envs)
    replay = EXTEND(empty(capacity, envs, 2), everything)
    replay = replay._replace(rows=replay.rows._replace(obs=replay.rows.obs[..., :1, :1, :1]))
    got = jax.jit(transitions, static_argnums=(2, 3))(replay, jax.random.key(0), 2, draws)
    row, env = np.asarray(got.action[..., 0], int), -np.asarray(got.action[..., 1], int)
    np.testing.assert_array_equal(row - row[:1], np.broadcast_to(np.arange(4)[:, None], row.shape))
    assert not np.asarray(got.first[-1]).any(), "none crosses an episode's end"
    drawn, counts = np.unique(np.stack([row[-1], env[-1]]), axis=1, return_counts=True)
    expected = [(t, e) for t in range(written - capacity + 3, written) for e in range(envs) if (t + e) % 5]
    assert sorted(map(tuple, drawn.T.tolist())) == expected
    assert any((t + 1 + e) % 5 == 0 for t, e in expected), "last steps are among them"
    chi_square = ((counts - draws / len(expected)) ** 2 / (draws / len(expected))).sum()
    assert len(expected) == 15 and 3.0 < chi_square < 36.1  # 0.1 % and 99.9 % quantiles for 14 degrees of freedom
