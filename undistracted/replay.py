"""A ring of rows on the device: frames stay uint8 and never return to the host for learning.

One column per environment, so that T consecutive rows of a column are T consecutive rows of experience, across episode
ends too (`first` marks them). Written and sampled by pure functions; callers donate the ring: it is updated in place.

One ring serves all: sequences, transitions between stacks of frames, which `stack` rebuilds from single ones, and
prioritised windows (`priorities.py`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from undistracted.data import Batch, where_rows

TRIES = 8  # draws of a transition, of which the first within an episode counts


class Replay(NamedTuple):
    rows: Batch  # (N, E, ...): N rows of E environments
    written: Array  # rows written since the beginning
    priority: Array | None = None  # (N, E), of the windows that start there, where windows are drawn by priority

    @property
    def capacity(self) -> int:
        return self.rows.reward.shape[-2]


def empty(capacity: int, envs: int, action_size: int, prioritised: bool = False) -> Replay:
    priority = jnp.zeros((capacity, envs)) if prioritised else None
    return Replay(Batch.zeros((capacity, envs), action_size), jnp.int32(0), priority)


def add(replay: Replay, row: Batch) -> Replay:
    """Append one row of every environment; the oldest row makes room."""
    index = replay.written % replay.capacity

    def write(ring, new):
        return jax.lax.dynamic_update_index_in_dim(ring, new.astype(ring.dtype), index, 0)

    return replay._replace(rows=jax.tree.map(write, replay.rows, row), written=replay.written + 1)


def sequences(replay: Replay, key, length: int, batch: int) -> Batch:
    """`batch` sequences (T, B, ...), uniform over environments and starts; none straddles the ring's seam."""
    return take(replay, *places(replay, key, length, batch))


def transitions(replay: Replay, key, before: int, batch: int) -> Batch:
    """Sequences (before + 2, B, ...) whose last two rows are a step of one episode, uniform over such steps."""
    rows, env = places(replay, key, before + 2, TRIES * batch)
    broken = replay.rows.first[rows[-1], env].reshape(TRIES, batch)
    chosen = jnp.argmin(broken, 0) * batch + jnp.arange(batch)
    return take(replay, rows[:, chosen], env[chosen])


def places(replay: Replay, key, length: int, batch: int) -> tuple[Array, Array]:
    """Where sequences lie: the ring's rows (T, B) and environments (B,)."""
    start_key, env_key = jax.random.split(key)
    capacity, envs = replay.rows.reward.shape
    size = jnp.minimum(replay.written, capacity)
    oldest = replay.written - size
    start = oldest + jax.random.randint(start_key, (batch,), 0, size - length + 1)
    rows = (start + jnp.arange(length)[:, None]) % capacity
    return rows, jax.random.randint(env_key, (batch,), 0, envs)


def take(replay: Replay, rows, env) -> Batch:
    return jax.tree.map(lambda ring: ring[rows, env], replay.rows)


def stack(rows: Batch, frames: int) -> Batch:
    """Rows (T, B, ...) with stacks of frames as pictures, oldest first; the first `frames` - 1 rows only lend theirs.

    Before an episode's first picture come copies of it, so no stack mixes two episodes."""
    length = rows.first.shape[0] - frames + 1

    def back(x, n):
        return x[frames - 1 - n : frames - 1 - n + length]

    pictures, whole = [back(rows.obs, 0)], ~back(rows.first, 0)
    for n in range(1, frames):
        pictures.append(where_rows(whole, back(rows.obs, n), pictures[-1]))
        whole &= ~back(rows.first, n)
    rows = jax.tree.map(lambda x: back(x, 0), rows)
    return rows._replace(obs=jnp.concatenate(pictures[::-1], -1))


def push(stacked, obs, first):
    """The stack (n, 64, 64, c) after one more picture, as `stack` would build it."""
    frames = stacked.shape[-1] // obs.shape[-1]
    longer = jnp.concatenate([stacked[..., obs.shape[-1] :], obs], -1)
    return where_rows(first, jnp.concatenate([obs] * frames, -1), longer)


def read(replay: Replay, rows) -> Batch:
    """Rows by their number, counted from the very first; they must still be in the ring."""
    return jax.tree.map(lambda ring: ring[rows % replay.capacity], replay.rows)


def extend(replay: Replay, rows: Batch) -> Replay:
    """Append rows (K, E, ...), one after the other."""
    return jax.lax.scan(lambda replay, row: (add(replay, row), None), replay, rows)[0]
