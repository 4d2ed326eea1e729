"""Behaviour learning in imagination: lambda-returns, pathwise actor gradient, critic regression."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float

from undistracted.dists import Normal, squashed_sample, unit_nll
from undistracted.nets import MLP
from undistracted.rssm import Latent


class Actor(eqx.Module):
    """pi(a | z): a tanh-squashed Gaussian whose mean is softly kept within (-5, 5) before squashing."""

    mlp: MLP

    def __init__(self, inputs: int, action: int, *, hidden: int, key, dtype):
        self.mlp = MLP(inputs, hidden, 4, 2 * action, key, dtype)

    def __call__(self, features) -> Normal:
        mean, raw = jnp.split(self.mlp(features), 2, -1)
        return Normal(5 * jnp.tanh(mean / 5), jax.nn.softplus(raw) + 0.1)

    def act(self, features, key=None):
        """The mode tanh(mean), or a sample where a key is given."""
        dist = self(features)
        return jnp.tanh(dist.mean) if key is None else squashed_sample(dist, key)[0]


def lambda_return(reward, value, gamma: float, lambda_: float) -> Float[Array, "H-1 *n"]:
    """R_t = r_t + gamma ((1 - lambda) V_{t+1} + lambda R_{t+1}), R_H = V_H, for (H, ...) rewards and values."""

    def step(following, row):
        reward, next_value = row
        following = reward + gamma * ((1 - lambda_) * next_value + lambda_ * following)
        return following, following

    return jax.lax.scan(step, value[-1], (reward[:-1], value[1:]), reverse=True)[1]


def behaviour_losses(actor, critic, model, start: Latent, key, *, horizon, gamma, lambda_, entropy_bonus):
    """Losses of actor and critic over imagined latents z_1..z_H; the start itself is no target.

    The policy sees detached latents: its gradient runs from the returns through rewards, values and dynamics into the
    actions. Model and critic only carry it; the critic learns from detached latents and returns.
    """

    def policy(latent, key):
        return squashed_sample(actor(sg(latent.features)), key)

    latent, log_prob = model.rssm.imagine(sg(start), policy, horizon, key)
    features = latent.features
    returns = lambda_return(model.reward(features), jax.tree.map(sg, critic)(features), gamma, lambda_)
    value = critic(sg(features[:-1]))
    losses = {
        "actor": -returns,
        "entropy": entropy_bonus * log_prob,
        "critic": unit_nll(value, sg(returns)),
    }
    return losses, {"imagined_return": returns.mean(), "value": value.mean(), "policy_entropy": -log_prob.mean()}
