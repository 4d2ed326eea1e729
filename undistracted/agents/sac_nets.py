"""The networks of soft actor-critic from stacked frames; `sac.py` says who trains which."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from undistracted.dists import Normal
from undistracted.nets import MLP, LayerNorm, Linear

WINDOWS = (3, 2), (3, 1), (3, 1), (3, 1)  # kernel and stride of the convolutions


class Projection(eqx.Module):
    """From what the convolutions see to the latent z, of zero mean and unit variance before scale and shift."""

    linear: Linear
    norm: LayerNorm

    def __init__(self, inputs: int, latent: int, key, dtype):
        self.linear, self.norm = Linear(inputs, latent, key, dtype), LayerNorm(latent)

    def __call__(self, seen):
        return self.norm(self.linear.exact(seen))


class Actor(eqx.Module):
    """pi(a | z): a tanh-squashed Gaussian with log std in (-10, 2)."""

    projection: Projection
    mlp: MLP

    def __call__(self, seen) -> Normal:
        mean, raw = jnp.split(self.mlp(self.projection(seen)), 2, -1)
        return Normal(mean, jnp.exp(-10 + 6 * (jnp.tanh(raw) + 1)))


class Critic(eqx.Module):
    """The latent z, and two values of an action in it."""

    projection: Projection
    heads: list[MLP]

    def __call__(self, z, action) -> Float[Array, "2 B"]:
        x = jnp.concatenate([z, action], -1)
        return jnp.stack([head(x)[..., 0] for head in self.heads])
