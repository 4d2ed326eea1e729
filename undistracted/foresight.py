"""Rewards foretold: latents rolled on without looking, by the actions that were taken.

A world model whose bottleneck is cheap learns its prior from next to nothing, and imagination runs on the prior.
Here the rewards teach it as well: every n-th latent is rolled on for n steps, and tells the rewards that followed.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from undistracted.data import Batch
from undistracted.dists import unit_nll
from undistracted.rssm import Latent


def foretold_nll(model, z: Latent, batch: Batch, steps: int, key) -> Float[Array, "n m"]:
    """Of the rewards up to n steps after each of m latents, as the prior tells them; nothing is told beyond the end of
    an episode."""
    start = jax.tree.map(lambda x: pieces(x, steps)[-1], Latent(*(x[: len(x) - steps] for x in z)))
    after = Batch(None, *(pieces(x[steps:], steps) for x in batch[1:]))
    told, _ = model.rssm.imagine(start, lambda _, action: (action, None), after.action, key)
    over = jnp.cumsum(after.first, 0) > 0
    return jnp.where(over, 0.0, unit_nll(model.reward(told.features), after.reward))


def pieces(rows: Float[Array, "T B ..."], n: int) -> Float[Array, "n m ..."]:
    """Sequences cut into pieces of n rows, side by side, one sequence's after another's; rows that fill no piece are
    left out."""
    cut = jnp.moveaxis(rows[: len(rows) - len(rows) % n].reshape(-1, n, *rows.shape[1:]), 0, 2)
    return cut.reshape(n, -1, *rows.shape[2:])
