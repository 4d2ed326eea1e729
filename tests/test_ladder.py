"""Every agent climbs the ladder of `ladder.py`, whose answers are known."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import pytest
from ladder import LENGTH, VALUE, Climber

from undistracted import agents
from undistracted.agents import settings

ROWS = LENGTH / (LENGTH + 1)  # the share that has a reward: first rows have none


class Reading(NamedTuple):
    """Where an agent's metrics tell the mean of its critic and the squared error of its reward head."""

    value: Callable[[dict], float]
    error: Callable[[dict], float]
    settings: dict = {}


IMAGINATION = Reading(
    lambda metrics: metrics["value"],
    lambda metrics: 2 * (metrics["reward_loss"] / ROWS - 0.5 * np.log(2 * np.pi)),
)
AGENTS = dict.fromkeys(("repo", "dreamer", "tia"), IMAGINATION)
# Its two reward heads share a constant as they like, and the critic values what x's pays: the rest is y's, for ever.
AGENTS["denoised-mdp"] = IMAGINATION._replace(value=lambda metrics: metrics["value"] + VALUE * metrics["reward_y"])
# Slow copies that are not so slow, and hardly any pay for entropy, which the values would include.
SOFT = Reading(
    lambda metrics: metrics["value"],
    lambda metrics: metrics["reward_loss"],
    dict(
        updates_per_step=0.5,
        batch=16,
        hidden=32,
        sac=settings.SAC(latent=8, model_hidden=16, alpha0=1e-3, critic_tau=0.05),
    ),
)
AGENTS |= dict.fromkeys(("deepmdp", "dbc"), SOFT)
# Cues are drawn anew: only the first reward of a window can be told, and no next latent. So the others weigh little, or
# all latents become alike: as they did, for one stream of random numbers in ten, at the ladder's rate and channels.
HORIZON, RHO = 2, 0.2
AGENTS["tdmpc"] = Reading(
    lambda metrics: metrics["plan_value"],
    lambda metrics: metrics["reward_loss"] / (0.5 * (RHO ** np.arange(HORIZON)).sum()),
    dict(
        updates_per_step=0.5,
        hidden=32,
        horizon=HORIZON,
        model_lr=1e-3,
        channels=(8, 16),
        tdmpc=settings.TDMPC(
            latent=8,
            samples=16,
            proposals=4,
            elites=4,
            rounds=3,
            schedule=400,
            rho=RHO,
            consistency=0.2,
            tau=0.05,
            plan_every=10,
        ),
    ),
)


def test_no_agent_is_left_below():
    assert AGENTS.keys() == agents.AGENTS.keys()


@pytest.fixture(scope="module", params=AGENTS)
def agent(request, optimised):
    reading = AGENTS[request.param]
    return reading, Climber(request.param, **reading.settings)


def test_no_two_layers_begin_alike(agent):
    """Twins that do, as a pair of critics, are one for ever: both are shown the same."""
    state = agent[1].fresh[0]
    parts = [getattr(state, name) for name in ("policy", "critic", "auxiliary") if hasattr(state, name)]
    weights = [np.asarray(x) for x in jax.tree.leaves(parts) if x.ndim > 2 and np.asarray(x).any()]
    for i, one in enumerate(weights):
        assert not any(np.array_equal(one, other) for other in weights[:i]), one.shape


def test_constant_reward_has_the_value_of_its_series(agent):
    reading, climber = agent
    climb = climber.climb("Constant", 200)
    assert climb.reward == climb.random == LENGTH
    assert reading.value(climb.metrics) == pytest.approx(VALUE, rel=0.05)


def test_reward_is_read_from_the_picture(agent):
    """Guessing costs the variance, 1; a sequence that begins in mid-episode has not seen its first reward's picture."""
    reading, climber = agent
    assert reading.error(climber.climb("Shown", 200).metrics) < 0.4


def test_policy_climbs_what_it_is_paid_for(agent):
    """And its critic knows: the best policy is worth VALUE, and half of that behind a random action. A planner could do
    without its policy, but not foresee as much."""
    reading, climber = agent
    climb = climber.climb("Action", 150)
    assert abs(climb.random) < 0.2 * LENGTH and climb.reward > 0.9 * LENGTH
    assert reading.value(climb.metrics) > 0.6 * VALUE


def test_policy_follows_the_picture(agent):
    climb = agent[1].climb("Follow", 400)
    assert abs(climb.random) < 0.2 * LENGTH and climb.reward > 0.8 * LENGTH


def test_policy_foresees_a_late_reward(agent):
    climb = agent[1].climb("Late", 200)
    assert abs(climb.random) < 0.2 * LENGTH and climb.reward > 0.8 * (LENGTH - 1)
