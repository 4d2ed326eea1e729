"""The two distributions of the method, as free functions of arrays: diagonal Gaussian and tanh-squashed Gaussian."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

HALF_LOG_2PI = 0.9189385332046727
LOG_2 = 0.6931471805599453


class Normal(NamedTuple):
    """Independent Gaussians over the last axis."""

    mean: Float[Array, "*n d"]
    std: Float[Array, "*n d"]


def log_prob(dist: Normal, x) -> Float[Array, "*n"]:
    z = (x - dist.mean) / dist.std
    return (-0.5 * z**2 - jnp.log(dist.std) - HALF_LOG_2PI).sum(-1)


def kl(p: Normal, q: Normal) -> Float[Array, "*n"]:
    """KL(p || q) in nats, summed over the last axis."""
    ratio = p.std / q.std
    return (0.5 * (ratio**2 + ((p.mean - q.mean) / q.std) ** 2 - 1) - jnp.log(ratio)).sum(-1)


def unit_nll(mean, target) -> Float[Array, "*n"]:
    """Negative log-likelihood under a Gaussian of unit variance: how rewards and values are regressed."""
    return 0.5 * (target - mean) ** 2 + HALF_LOG_2PI


def squash(dist: Normal, noise) -> tuple[Float[Array, "*n d"], Float[Array, "*n"]]:
    """tanh(x) for the reparameterised x = mean + std noise, and its log-density (no inverse tanh needed)."""
    x = dist.mean + dist.std * noise
    log_det = 2 * (LOG_2 - x - jax.nn.softplus(-2 * x))  # log(1 - tanh(x)^2), stable for large |x|
    return jnp.tanh(x), log_prob(dist, x) - log_det.sum(-1)
