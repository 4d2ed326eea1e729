"""Behaviour learning in imagination: lambda-returns, pathwise actor gradient, critic regression."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float

from undistracted import parts
from undistracted.dists import Normal, squash, unit_nll
from undistracted.nets import DTYPES, MLP
from undistracted.rssm import Latent
from undistracted.seeds import each_seed
from undistracted.slopes import Trace, known_output, passage, trace, traced_value


class Actor(eqx.Module):
    """pi(a | z): a tanh-squashed Gaussian whose mean is softly kept within (-5, 5) before squashing.

    Its deviation is softplus(v) + min_std; where `std` is given, a network that puts out v = 0 has that softplus.
    """

    mlp: MLP
    shift: float = eqx.field(static=True)
    min_std: float = eqx.field(static=True)

    def __init__(self, inputs: int, action: int, *, hidden: int, key, dtype, std: float | None = None, min_std=0.1):
        self.mlp = MLP(inputs, hidden, 4, 2 * action, key, dtype)
        self.shift, self.min_std = 0.0 if std is None else math.log(math.expm1(std)), min_std

    @property
    def action_size(self) -> int:
        return self.mlp.layers[-1].bias.shape[0] // 2

    def __call__(self, features) -> Normal:
        return self.normal(self.mlp(features))

    def normal(self, out) -> Normal:
        mean, raw = jnp.split(out, 2, -1)
        return Normal(5 * jnp.tanh(mean / 5), jax.nn.softplus(raw + self.shift) + self.min_std)

    def act(self, features, noise=None):
        """The mode tanh(mean), or a sample where standard normal noise is given."""
        dist = self(features)
        return jnp.tanh(dist.mean) if noise is None else squash(dist, noise)[0]


def lambda_return(reward, value, gamma: float, lambda_: float) -> Float[Array, "H-1 *n"]:
    """R_t = r_t + gamma ((1 - lambda) V_{t+1} + lambda R_{t+1}), R_H = V_H, for (H, ...) rewards and values.

    Unrolled, R_t is the sum of (gamma lambda)^k (r_{t+k} + gamma (1 - lambda) V_{t+k+1}), and of what follows the last:
    one product, where a GPU would wait for each step of a loop."""
    each = reward[:-1] + gamma * (1 - lambda_) * value[1:]
    each = each.at[-1].add(gamma * lambda_ * value[-1])
    step = jnp.arange(float(len(each)))
    ahead = step - step[:, None]
    decay = jnp.where(ahead >= 0, (gamma * lambda_) ** jnp.maximum(ahead, 0), 0.0)
    return jnp.tensordot(decay, each, 1, precision="highest")


class Dream(NamedTuple):
    """Imagined latents z_0..z_H and what the policy did there; H actions, H - 1 returns (of z_1..z_{H-1})."""

    features: Float[Array, "H+1 n F"]
    noise: Float[Array, "H n A"]
    returns: Float[Array, "H-1 n"]
    policy: tuple  # the actor's outputs and hidden layers, each (H, n, ...)
    pull: Float[Array, "H n A"]  # gradient of the mean weighted return with respect to each action
    weight: Float[Array, "H-1 1"]  # of each return
    critic: Trace  # of z_1..z_H


def dream(actor, critic, model, start: Latent, key, *, horizon, gamma, lambda_, discounted=False) -> Dream:
    """Roll the policy out in the model, and pull back the mean return, through values, rewards and dynamics, to the
    actions. The policy sees detached latents, so all that is left for its parameters is one batched product. Returns
    weigh alike, or, discounted, by 1, gamma, gamma^2, ... Several seeds are rolled out at once, and judged one by one:
    large products are no faster together."""
    state_key, action_key = jax.random.split(key)
    noise = parts.normal(action_key, (horizon, *start.state.shape[:-1], actor.action_size))
    weight = (gamma if discounted else 1.0) ** jnp.arange(horizon - 1.0)[:, None]
    dtype = DTYPES[critic.mlp.layers[0].dtype]

    def rollout(nudge):
        def policy(latent, row):
            noise, nudge = row
            out, hidden = sg(passage(actor.mlp, latent.features))
            return squash(actor.normal(out), noise)[0] + nudge, (out, hidden)

        latent, acted = model.rssm.imagine(start, policy, (noise, nudge), state_key)
        return latent.features.astype(dtype), acted  # as heads and policy take them: half to file and to read

    features, pull_back, acted = jax.vjp(rollout, jnp.zeros_like(noise), has_aux=True)
    returns, gradient, critic = each_seed(partial(judge, gamma, lambda_))(model.reward, critic, features, weight)
    (pull,) = pull_back(gradient.astype(dtype))
    features = jnp.concatenate([start.features[None].astype(dtype), features])
    return Dream(features, noise, returns, acted, pull, weight, critic)


def judge(gamma, lambda_, reward, critic, features, weight):
    """The returns of imagined latents, the gradient of their weighted mean, and the critic's trace."""
    reward, critic = trace(reward, features), trace(critic, features)

    def mean_return(reward, value):
        returns = lambda_return(reward, value, gamma, lambda_)
        return (weight * returns).mean(), returns

    (by_reward, by_value), returns = jax.grad(mean_return, (0, 1), has_aux=True)(reward.value, critic.value)
    return returns, by_reward[..., None] * reward.slope + by_value[..., None] * critic.slope, critic


def policy_output(actor, dream: Dream):
    """What the policy's network put out in the dream, with its gradient to the network's weights."""
    return known_output(actor.mlp, dream.features[:-1], *dream.policy)


def critic_value(critic, dream: Dream):
    """The values of z_1..z_H, with their gradient to the critic's weights."""
    return traced_value(critic, dream.critic)


class Way(NamedTuple):
    """How a dream and its gradients are computed: by the functions above or by kernels of our own (`kernels/`)."""

    dream: Callable[..., Dream]
    policy_output: Callable[[Actor, Dream], Array]
    critic_value: Callable[[Any, Dream], Array]
    over_seeds: Callable  # of the gradients of the losses: seed by seed, or, as it is, for a vmap over all


PLAIN = Way(dream, policy_output, critic_value, over_seeds=each_seed)


def behaviour_losses(actor, critic, dream: Dream, entropy_bonus: float, way: Way = PLAIN):
    """Losses of actor and critic over a dream; the start z_0 is acted from but is no target of the critic."""
    policy = actor.normal(way.policy_output(actor, dream))
    action, log_prob = squash(policy, dream.noise)
    value = way.critic_value(critic, dream)[:-1]
    losses = {
        # Value: the mean weighted return. Gradient: each action is moved along its pull.
        "actor": -(dream.weight * dream.returns).mean() - (dream.pull * (action - sg(action))).sum(),
        "entropy": entropy_bonus * log_prob,
        "critic": dream.weight * unit_nll(value, dream.returns),
    }
    metrics = {
        "imagined_return": dream.returns.mean(),
        "value": value.mean(),
        "policy_entropy": -log_prob.mean(),
        "policy_mean": jnp.abs(policy.mean).mean(),
        "policy_std": policy.std.mean(),
    }
    return losses, metrics
