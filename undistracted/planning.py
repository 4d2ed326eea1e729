"""Model-predictive path integral control (MPPI): plans drawn around the best plans of the round before.

Free functions of one environment's arrays; agents map them over environments. A plan is a sequence of actions (H, A).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

WIDEST = 2.0  # std of a plan before the first round, and at most


class Plan(NamedTuple):
    mean: Float[Array, "H A"]
    std: Float[Array, "H A"]
    elites: Float[Array, "K H A"]
    weight: Float[Array, "K"]
    value: Float[Array, "K"]


def mppi(value, mean, proposals, floor, key, settings) -> Plan:
    """The plan after all rounds, begun from a mean; `proposals` (P, H, A) take part in every round.

    value        (N, H, A) -> (N,), the worth of action sequences
    floor        least std of every round
    settings     samples, elites, rounds, temperature, momentum
    """

    def improve(i, plan: Plan) -> Plan:
        noise = jax.random.normal(jax.random.fold_in(key, i), (settings.samples, *mean.shape))
        actions = jnp.concatenate([jnp.clip(plan.mean + plan.std * noise, -1, 1), proposals])
        values, best = jax.lax.top_k(jnp.nan_to_num(value(actions)), settings.elites)
        elites, weight = actions[best], jax.nn.softmax(settings.temperature * values)
        new, std = weighted_moments(elites, weight)
        new = settings.momentum * plan.mean + (1 - settings.momentum) * new
        return Plan(new, jnp.clip(std, floor, WIDEST), elites, weight, values)

    elites = jnp.zeros((settings.elites, *mean.shape))
    empty = Plan(mean, jnp.full_like(mean, WIDEST), elites, elites[:, 0, 0], elites[:, 0, 0])
    return jax.lax.fori_loop(0, settings.rounds, improve, empty)


def weighted_moments(x: Float[Array, "K *n"], weight: Float[Array, "K"]):
    """Mean and std of x under weights that sum to one."""
    mean = jnp.tensordot(weight, x, 1)
    return mean, jnp.sqrt(jnp.tensordot(weight, (x - mean) ** 2, 1))


def draw(plan: Plan, key) -> Float[Array, "A"]:
    """The first action of an elite, drawn by weight."""
    return plan.elites[jax.random.categorical(key, jnp.log(plan.weight)), 0]


def warm_start(mean: Float[Array, "H A"], horizon) -> Float[Array, "H A"]:
    """The mean of the last plan, one step on; zero from the last step of the horizon."""
    ahead = jnp.roll(mean, -1, 0)
    return jnp.where(jnp.arange(len(mean))[:, None] < horizon - 1, ahead, 0)


def linear(first: float, last: float, progress):
    """From first to last while progress goes from 0 to 1."""
    return first + (last - first) * jnp.clip(progress, 0, 1)
