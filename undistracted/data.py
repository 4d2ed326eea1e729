"""The data conventions of the whole package, written once.

Axes      Arrays are time-major, `(T, B, ...)`: T steps, B sequences, H imagined steps, A action size, Z stochastic
          state size, D belief size. Several seeds are trained at once along a leading axis S: agents and replay are
          written for one seed, which `learner.py` maps, and what runs around them has rows (S, E, ...).
Rows      Row t holds `o_t` and the action and reward *that led to it*, plus `first_t`. On first rows action and
          reward are zero, and belief, state and action are reset. The last observation of an episode is a row too,
          so no reward is lost.
Pixels    uint8 HWC 64x64x3, until the encoder scales them to [-1, 1].
Steps     Agent steps, after action repeat, on every axis and in every flag. First rows are not steps.
KL        Summed over latent dimensions, averaged over time and batch: epsilon is nats per agent step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt8

IMAGE = (64, 64, 3)


class Batch(NamedTuple):
    """Rows of experience as described above; one row of one environment has no leading axes."""

    obs: UInt8[Array, "*rows 64 64 3"]
    action: Float[Array, "*rows A"]
    reward: Float[Array, "*rows"]
    first: Bool[Array, "*rows"]

    @staticmethod
    def zeros(rows: tuple[int, ...], action_size: int) -> "Batch":
        return Batch(
            jnp.zeros((*rows, *IMAGE), jnp.uint8),
            jnp.zeros((*rows, action_size), jnp.float32),
            jnp.zeros(rows, jnp.float32),
            jnp.zeros(rows, jnp.bool_),
        )


def flatten_rows(tree):
    """(T, B, ...) -> (B * T, ...) on every leaf, one sequence after the other."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), tree)


def by_seed(row: Batch, seeds: int) -> Batch:
    """A row of all environments (S * n, ...) as each seed's own (S, n, ...)."""
    return jax.tree.map(lambda x: x.reshape(seeds, -1, *x.shape[1:]), row)


def where_rows(mask: Bool[Array, "*rows"], if_true, if_false):
    """Row-wise choice between two pytrees whose leaves have more axes than the mask."""

    def choose(a, b):
        return jnp.where(mask.reshape(mask.shape + (1,) * (b.ndim - mask.ndim)), a, b)

    return jax.tree.map(choose, if_true, if_false)
