"""TOLD, the task-oriented latent dynamics of TD-MPC: its networks, its losses, and what a plan is worth in it.

From o_0 of a window of the replay, z_0 = h(o_0) and z_{t+1} = d(z_t, a_t) for H steps; each step weighted by rho^t:

    2 mean_d (z_{t+1} - h_slow(o_{t+1}))^2  +  1/2 (R(z_t, a_t) - r_t)^2  +  1/10 sum_i (Q_i(z_t, a_t) - y_t)^2
    y_t = r_t + gamma min_i Q_slow,i(z', pi(z')),   z' = h(o_{t+1}),   both targets held still
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float

from undistracted.convs import Convs, orthogonal_window
from undistracted.data import Batch
from undistracted.initial import orthogonal
from undistracted.nets import MLP, Linear, NormedMLP, Scalar

WINDOWS = (7, 2), (5, 2), (3, 2), (3, 2)  # kernel and stride of the convolutions
MOST = 1e4  # of a window's losses and errors


class Encoder(eqx.Module):
    """h: a stack of frames -> z."""

    convs: Convs
    linear: Linear

    def __call__(self, obs):
        return self.linear.exact(self.convs(obs))


class Values(eqx.Module):
    """Two values Q_i of an action in a latent."""

    heads: list[NormedMLP]

    def __call__(self, z, action) -> Float[Array, "2 *n"]:
        x = join(z, action)
        return jnp.stack([head(x)[..., 0] for head in self.heads])


class Model(eqx.Module):
    encoder: Encoder  # h
    dynamics: MLP  # d
    reward: Scalar  # R
    values: Values  # Q_1, Q_2

    def __init__(self, config, action_size: int, key):
        c, s, k = config, config.tdmpc, jax.random.split(key, 6)
        dtype, both = c.precision, s.latent + action_size
        convs = Convs(c, s.frames, WINDOWS, orthogonal_window, k[0])
        self.encoder = Encoder(convs, orthogonal(Linear(convs.size, s.latent, k[1], dtype), k[1]))
        self.dynamics = orthogonal(MLP(both, c.hidden, 2, s.latent, k[2], dtype), k[2])
        self.reward = zero_output(orthogonal(Scalar(both, c.hidden, 2, k[3], dtype), k[3]), lambda m: m.mlp)
        heads = [orthogonal(NormedMLP(both, c.hidden, 1, 1, key, dtype, jnp.tanh), key) for key in k[4:]]
        self.values = Values([zero_output(head, lambda m: m.rest) for head in heads])


class Slow(NamedTuple):
    """The slow copies that targets are made with."""

    encoder: Encoder
    values: Values


class Pi(eqx.Module):
    """pi(z): a deterministic policy, to which noise is added."""

    mlp: MLP

    def __init__(self, config, action_size: int, key):
        mlp = MLP(config.tdmpc.latent, config.hidden, 2, action_size, key, config.precision)
        self.mlp = orthogonal(mlp, key)

    def __call__(self, z, noise):
        """Within (-1, 1) and 0.3 of the mean, where gradients pass as if nothing had been clipped."""
        action = jnp.tanh(self.mlp(z)) + jnp.clip(noise, -0.3, 0.3)
        return action + sg(jnp.clip(action, -1 + 1e-6, 1 - 1e-6) - action)


def told_losses(model: Model, slow: Slow, pi: Pi, batch: Batch, following, noise, config):
    """The terms of the objective, each (B,), the latents z_0..z_H, and the errors that become priorities.

    `following` is h(o_1)..h(o_H) by the model's own encoder; rows of the batch hold the action that led to them."""
    s, action, reward = config.tdmpc, batch.action[1:], batch.reward[1:]
    y = sg(reward + config.gamma * slow.values(following, pi(following, noise)).min(0))
    consistent = sg(slow.encoder(batch.obs[1:]))
    z = rollout(model, model.encoder(batch.obs[0]), action, config.unroll)
    q = model.values(z[:-1], action)
    rho = s.rho ** jnp.arange(len(action))

    def over_time(loss):
        return jnp.minimum(jnp.tensordot(rho, loss, 1), MOST)

    losses = {
        "consistency": s.consistency * over_time(((z[1:] - consistent) ** 2).mean(-1)),
        "reward": s.reward * over_time((model.reward(join(z[:-1], action)) - reward) ** 2),
        "value": s.value * over_time(((q - y) ** 2).sum(0)),
    }
    return losses, z, sg(over_time(jnp.abs(q - y).sum(0)))


def policy_loss(pi: Pi, values: Values, z, noise, rho: float) -> Float[Array, "B"]:
    """Minus the value of the policy's actions at z_0..z_H; the values only lend their slope."""
    q = values(sg(z), pi(sg(z), noise)).min(0)
    return -jnp.tensordot(rho ** jnp.arange(len(z)), q, 1)


def rollout(model: Model, z, action, unroll: int = 1) -> Float[Array, "H+1 *n latent"]:
    """z_0..z_H under actions (H, ...)."""

    def step(z, action):
        z = model.dynamics(join(z, action))
        return z, z

    return jnp.concatenate([z[None], jax.lax.scan(step, z, action, unroll=unroll)[1]])


def plan_value(model: Model, pi: Pi, z, actions, noise, horizon, gamma: float, unroll: int = 1) -> Float[Array, "N"]:
    """Of action sequences (N, H, A) from the latent z: rewards of `horizon` steps, then the policy's value."""

    def step(carry, row):
        z, total, discount = carry
        action, t = row
        within, x = t < horizon, join(z, action)
        total += jnp.where(within, discount * model.reward(x), 0)
        return (jnp.where(within, model.dynamics(x), z), total, jnp.where(within, gamma * discount, discount)), None

    n, length = actions.shape[:2]
    start = jnp.broadcast_to(z, (n, *z.shape)), jnp.zeros(n), jnp.ones(n)
    steps = jnp.moveaxis(actions, 1, 0), jnp.arange(length)
    (z, total, discount), _ = jax.lax.scan(step, start, steps, unroll=unroll)
    return total + discount * model.values(z, pi(z, noise)).min(0)


def proposals(model: Model, pi: Pi, z, noise, unroll: int = 1) -> Float[Array, "P H A"]:
    """Action sequences of the policy, with noise (P, H, A), from the latent z."""

    def step(z, noise):
        action = pi(z, noise)
        return model.dynamics(join(z, action)), action

    start = jnp.broadcast_to(z, (len(noise), *z.shape))
    actions = jax.lax.scan(step, start, jnp.moveaxis(noise, 1, 0), unroll=unroll)[1]
    return jnp.moveaxis(actions, 0, 1)


def join(z, action):
    return jnp.concatenate([z, action], -1)


def zero_output(module, mlp):
    """The module with zeros in the last layer of its MLP."""
    return eqx.tree_at(lambda m: mlp(m).layers[-1].weight, module, replace_fn=jnp.zeros_like)
