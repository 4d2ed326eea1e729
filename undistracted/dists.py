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


def sample(dist: Normal, key) -> Float[Array, "*n d"]:
    """One reparameterised sample: gradients reach mean and std."""
    return dist.mean + dist.std * jax.random.normal(key, dist.mean.shape, dist.mean.dtype)


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


def squashed_sample(dist: Normal, key) -> tuple[Float[Array, "*n d"], Float[Array, "*n"]]:
    """A sample of tanh(x), x ~ dist, and its log-density, by change of variables at x (no inverse tanh needed)."""
    x = sample(dist, key)
    log_det = 2 * (LOG_2 - x - jax.nn.softplus(-2 * x))  # log(1 - tanh(x)^2), stable for large |x|
    return jnp.tanh(x), log_prob(dist, x) - log_det.sum(-1)
