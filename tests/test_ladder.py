"""Every agent climbs the ladder of `ladder.py`, whose answers are known."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from ladder import LENGTH, VALUE, Climber

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
# Its two reward heads share a constant as they like, and the critic values what x's pays.
AGENTS["denoised-mdp"] = IMAGINATION._replace(value=lambda metrics: metrics["value"] / metrics["reward_x"])


@pytest.fixture(scope="module", params=AGENTS)
def agent(request):
    reading = AGENTS[request.param]
    return reading, Climber(request.param, **reading.settings)


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
    climb = agent[1].climb("Action", 150)
    assert abs(climb.random) < 0.2 * LENGTH and climb.reward > 0.9 * LENGTH


def test_policy_follows_the_picture(agent):
    climb = agent[1].climb("Follow", 400)
    assert abs(climb.random) < 0.2 * LENGTH and climb.reward > 0.8 * LENGTH


def test_policy_foresees_a_late_reward(agent):
    climb = agent[1].climb("Late", 200)
    assert abs(climb.random) < 0.2 * LENGTH and climb.reward > 0.8 * (LENGTH - 1)
