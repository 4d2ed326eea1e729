"""Windows of the ring drawn in proportion to their priority, with weights that correct for it (Schaul et al. 2016).

`Replay.priority` holds, for each row, p^alpha of the window that starts there: `before` rows that only lend their
frames, the row itself, and the `after` rows that follow. It is zero where a window would leave its episode or the ring.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from undistracted.data import Batch
from undistracted.replay import Replay, take

ALPHA, BETA = 0.6, 0.4
SMALLEST = 1e-6  # added to errors, so that every window is drawn at times


class Windows(NamedTuple):
    rows: Batch  # (before + 1 + after, B, ...)
    weight: Float[Array, "B"]
    place: Int[Array, "B"]  # of the window's own row among all (N * E)


def admit(replay: Replay, before: int, after: int) -> Replay:
    """Give the window that the newest row completes the greatest priority there is, and those it overwrote none."""
    capacity, newest = replay.capacity, replay.written - 1
    completed = (newest - jnp.arange(after + 1)) % capacity  # newest first; the last is where the window starts
    whole = ~replay.rows.first[completed[:-1]].any(0) & (replay.written > after)
    greatest = jnp.maximum(replay.priority.max(), jnp.where(replay.priority.any(), 0, 1))
    # The oldest rows lend their frames only. Before the ring is full, these places are empty ones.
    gone = (newest + jnp.arange(before + 1)) % capacity
    priority = replay.priority.at[gone].set(0.0).at[completed[-1]].set(jnp.where(whole, greatest, 0))
    return replay._replace(priority=priority)


def windows(replay: Replay, key, before: int, after: int, batch: int) -> Windows:
    """`batch` windows by priority; weights (P(i) N)^-beta, over the greatest of the batch."""
    priority, (capacity, envs) = replay.priority, replay.priority.shape
    # First a row, by all that its environments have, then one of them: one sum over all would swallow the small ones.
    u, v = jax.random.uniform(key, (2, batch))
    total = jnp.cumsum(priority.sum(1))
    row = jnp.searchsorted(total, u * total[-1], side="right", method="scan_unrolled")
    row = jnp.minimum(row, capacity - 1)
    total = jnp.cumsum(priority[row], 1)
    env = jnp.minimum((total <= v[:, None] * total[:, -1:]).sum(1), envs - 1)
    chosen = priority[row, env]
    weight = jnp.where(chosen > 0, chosen, jnp.inf) ** -BETA
    rows = take(replay, (row + jnp.arange(-before, after + 1)[:, None]) % capacity, env)
    return Windows(rows, weight / jnp.maximum(weight.max(), 1e-12), row * envs + env)


def rate(priority: Float[Array, "N E"], drawn: Windows, error: Float[Array, "B"]) -> Float[Array, "N E"]:
    """The priorities after the drawn windows have shown these errors; of a window drawn twice, the greater."""
    new = jnp.where(drawn.weight > 0, (error + SMALLEST) ** ALPHA, 0)
    flat = priority.reshape(-1).at[drawn.place].set(0.0).at[drawn.place].max(new)
    return flat.reshape(priority.shape)
