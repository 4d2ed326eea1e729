"""DBC: latents as far apart as their rewards and their futures are (deep bisimulation for control).

    w (|z_i - z_j| - |r_i - r_j| - gamma d(P_i, P_j))^2  +  -log P(z' | z, a)  +  (r - R(z^'))^2,      z^' ~ P(. | z, a)

over pairs of a batch, as an auxiliary loss of soft actor-critic (`sac.py`): the first term moves the encoder only.
`docs/agents/dbc.md` has the metrics and every departure.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.lax import stop_gradient as sg

from undistracted.agents.deepmdp import KINDS, Transition, transition_loss
from undistracted.dists import Normal
from undistracted.nets import NormedMLP


def smooth_l1(x, y):
    """|x - y| - 1/2, and a parabola where that is below 1/2."""
    return optax.huber_loss(x, y)


def mean_distance(p: Normal, q: Normal):
    return smooth_l1(p.mean, q.mean)


def wasserstein(p: Normal, q: Normal):
    """The 2-Wasserstein distance of Gaussians, of each dimension."""
    return jnp.sqrt((p.mean - q.mean) ** 2 + (p.std - q.std) ** 2)


DISTANCES = {"deterministic": mean_distance, "probabilistic": wasserstein, "ensemble": wasserstein}


def distances(z, reward, predicted: Normal, pair, distance):
    """dz, dr and dp of every row i and the row pair[i], each (B, latent); only dz has a gradient."""
    predicted, others = sg((predicted, jax.tree.map(lambda x: x[:, pair], predicted)))
    dz = smooth_l1(z, z[pair])
    dr = smooth_l1(reward, reward[pair])[:, None] * jnp.ones_like(dz)
    return dz, dr, distance(predicted, others).mean(0)  # over members


class DBC(eqx.Module):
    transition: Transition
    reward: NormedMLP
    weight: float = eqx.field(static=True)
    gamma: float = eqx.field(static=True)
    distance: Callable = eqx.field(static=True)

    def __init__(self, config, action_size: int, key):
        k1, k2 = jax.random.split(key)
        own, s = config.dbc, config.sac
        self.transition = Transition(KINDS[own.transition], config, action_size, k1)
        self.reward = NormedMLP(s.latent, s.model_hidden, 0, 1, k2, config.precision, jax.nn.relu)
        self.weight, self.gamma, self.distance = own.bisimulation, config.gamma, DISTANCES[own.transition]

    def losses(self, z, next_z, action, reward, key):
        """The terms of the objective, each (B,), and what to watch."""
        pair_key, sample_key = jax.random.split(key)
        predicted = self.transition(z, action)
        pair = jax.random.permutation(pair_key, len(z))
        dz, dr, dp = distances(z, reward, predicted, pair, self.distance)
        predicted_reward = self.reward(self.transition.sample(predicted, sample_key))[..., 0]
        losses = {
            "bisimulation": self.weight * ((dz - dr - self.gamma * dp) ** 2).mean(-1),
            "transition": transition_loss(predicted, next_z),
            "reward": (predicted_reward - reward) ** 2,
        }
        return losses, {"dz": dz.mean(), "dr": dr.mean(), "dp": dp.mean()}
