"""A ring of rows on the device: frames stay uint8 and never return to the host for learning.

One column per environment, so that T consecutive rows of a column are T consecutive rows of experience, across episode
ends too (`first` marks them). Written and sampled by pure functions; callers donate the ring: it is updated in place.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from undistracted.data import Batch


class Replay(NamedTuple):
    rows: Batch  # (N, E, ...): N rows of E environments
    written: Array  # rows written since the beginning

    @property
    def capacity(self) -> int:
        return self.rows.reward.shape[-2]


def empty(capacity: int, envs: int, action_size: int) -> Replay:
    return Replay(Batch.zeros((capacity, envs), action_size), jnp.int32(0))


def add(replay: Replay, row: Batch) -> Replay:
    """Append one row of every environment; the oldest row makes room."""
    index = replay.written % replay.capacity

    def write(ring, new):
        return jax.lax.dynamic_update_index_in_dim(ring, new.astype(ring.dtype), index, 0)

    return Replay(jax.tree.map(write, replay.rows, row), replay.written + 1)


def sequences(replay: Replay, key, length: int, batch: int) -> Batch:
    """`batch` sequences (T, B, ...), uniform over environments and starts; none straddles the ring's seam."""
    start_key, env_key = jax.random.split(key)
    capacity, envs = replay.rows.reward.shape
    size = jnp.minimum(replay.written, capacity)
    oldest = replay.written - size
    start = oldest + jax.random.randint(start_key, (batch,), 0, size - length + 1)
    rows = (start + jnp.arange(length)[:, None]) % capacity
    env = jax.random.randint(env_key, (batch,), 0, envs)
    return jax.tree.map(lambda ring: ring[rows, env], replay.rows)


def read(replay: Replay, rows) -> Batch:
    """Rows by their number, counted from the very first; they must still be in the ring."""
    return jax.tree.map(lambda ring: ring[rows % replay.capacity], replay.rows)


def extend(replay: Replay, rows: Batch) -> Replay:
    """Append rows (K, E, ...), one after the other."""
    return jax.lax.scan(lambda replay, row: (add(replay, row), None), replay, rows)[0]
