"""DeepMDP: a latent from which the reward and the next latent can be told.

    (z' - mu(z, a))^2 / (2 sigma^2) + log sigma   +   (r - R(z, a))^2,      z' held still

as an auxiliary loss of soft actor-critic (`sac.py`). `docs/agents/deepmdp.md` has the metrics and every departure.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from undistracted.dists import Normal
from undistracted.nets import NormedMLP


class Kind(NamedTuple):
    """Of transition models: how many there are, how an output becomes a Gaussian, and whether that is sampled."""

    members: int
    widths: int  # outputs per latent dimension
    gaussian: Callable
    noisy: bool


def unit(raw) -> Normal:
    return Normal(raw, jnp.ones_like(raw))


def wide(raw) -> Normal:
    """Of learned std, in (1e-4, 10)."""
    mean, raw = jnp.split(raw, 2, -1)
    return Normal(mean, 1e-4 + (10 - 1e-4) * jax.nn.sigmoid(raw))


KINDS = {
    "deterministic": Kind(1, 1, unit, False),
    "probabilistic": Kind(1, 2, wide, True),
    "ensemble": Kind(5, 2, wide, True),
}


class Transition(eqx.Module):
    """P(z' | z, a): a Gaussian of each member of an ensemble, which may be a single one."""

    members: list[NormedMLP]
    kind: Kind = eqx.field(static=True)

    def __init__(self, kind: Kind, config, action_size: int, key):
        s, keys = config.sac, jax.random.split(key, kind.members)
        sizes = s.latent + action_size, s.model_hidden, 0, kind.widths * s.latent
        self.members = [NormedMLP(*sizes, k, config.precision, jax.nn.relu) for k in keys]
        self.kind = kind

    def __call__(self, z, action) -> Normal:
        x = jnp.concatenate([z, action], -1)
        each = [self.kind.gaussian(member(x)) for member in self.members]
        return jax.tree.map(lambda *x: jnp.stack(x), *each)  # (members, B, latent)

    def sample(self, predicted: Normal, key) -> Float[Array, "B latent"]:
        """A sample of one member; the mean of a deterministic model."""
        member_key, noise_key = jax.random.split(key)
        member = jax.random.randint(member_key, (), 0, self.kind.members)
        mean, std = predicted.mean[member], predicted.std[member]
        return mean + self.kind.noisy * std * jax.random.normal(noise_key, mean.shape)


def transition_loss(predicted: Normal, next_z) -> Float[Array, "B"]:
    """Negative log-likelihood without its constant, a mean over dimensions and members."""
    error = 0.5 * ((predicted.mean - next_z) / predicted.std) ** 2 + jnp.log(predicted.std)
    return error.mean((0, -1))


class DeepMDP(eqx.Module):
    transition: Transition
    reward: NormedMLP

    def __init__(self, config, action_size: int, key):
        k1, k2 = jax.random.split(key)
        self.transition = Transition(KINDS[config.deepmdp.transition], config, action_size, k1)
        s = config.sac
        self.reward = NormedMLP(s.latent + action_size, s.model_hidden, 0, 1, k2, config.precision, jax.nn.relu)

    def losses(self, z, next_z, action, reward, key):
        """The terms of the objective, each (B,), and what to watch."""
        predicted_reward = self.reward(jnp.concatenate([z, action], -1))[..., 0]
        losses = {
            "transition": transition_loss(self.transition(z, action), next_z),
            "reward": (predicted_reward - reward) ** 2,
        }
        return losses, {}
