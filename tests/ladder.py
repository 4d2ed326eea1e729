"""A ladder of tiny environments with known answers, each rung asking for one thing more than the one below it.

    Constant   a critic, and rewards that reach it
    Shown      an encoder: the reward is in the picture
    Action     a policy that climbs what it is paid for
    Follow     a policy that looks at the picture
    Late       foresight: an action pays one step later

Tasks are named `gym/ladder:Constant-v0`. What a picture shows is which of its halves is the brighter one, and how much:
all are as bright, since latents of unit variance hide brightness. Episodes last eight steps and end by truncation, so
that values go on beyond them. What an agent is paid is decided by what it sees and does, so that agents without memory
can climb too. An agent that falls off a rung tells by it what is broken.
"""

import dataclasses
from types import SimpleNamespace
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from undistracted.collector import Collector
from undistracted.evaluation import Evaluation, summarise
from undistracted.learner import Learner
from undistracted.presets import complete, preset_config
from undistracted.rollout import Environments

LENGTH, GAMMA = 8, 0.5
VALUE = 1 / (1 - GAMMA)  # of a reward of 1 for ever
# The debug preset's networks, on averaged pictures of 16x16, with rates that suit so small ones.
SETTINGS = dict(
    gamma=GAMMA,
    envs=4,
    prefill=400,
    replay_size=4_000,
    updates_per_step=0.25,
    channels=(4, 8),
    shrink=4,
    batch=8,
    length=6,
    model_lr=3e-3,
    actor_lr=3e-3,
    critic_lr=3e-3,
    eval_envs=4,
    eval_episodes=8,
    precision="float32",
)


class Rung(gymnasium.Env):
    """Shows a cue from -1 (bright on the left) to 1 (on the right): one of both, drawn anew at each step, unless the
    rung says otherwise."""

    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.cue = 0, self.next_cue(0.0)
        return self._picture(), {}

    def step(self, action):
        reward = self.pay(self.cue, float(action[0]))
        self.t, self.cue = self.t + 1, self.next_cue(float(action[0]))
        return self._picture(), reward, False, self.t == LENGTH, {}

    def pay(self, cue: float, action: float) -> float:
        """What an action brings at the sight of a cue."""
        raise NotImplementedError

    def next_cue(self, action: float) -> float:
        return float(self.np_random.choice([-1, 1]))

    def _picture(self):
        row = np.repeat([-self.cue, self.cue], 32)
        return np.broadcast_to(np.uint8(np.round(128 + 100 * row))[:, None], (64, 64, 3))


class Constant(Rung):
    def pay(self, cue, action):
        return 1.0


class Shown(Rung):
    def pay(self, cue, action):
        return cue


class Action(Rung):
    def pay(self, cue, action):
        return action


class Follow(Rung):
    def pay(self, cue, action):
        return cue * action


class Late(Rung):
    def pay(self, cue, action):
        return cue

    def next_cue(self, action):
        return action


for rung in (Constant, Shown, Action, Follow, Late):
    gymnasium.register(f"{rung.__name__}-v0", rung)


class Climb(NamedTuple):
    """What came of learning on a rung."""

    metrics: dict  # means over the last quarter of the updates
    reward: float  # return of the policy's means
    random: float  # of random actions


class Climber:
    """An agent that is set back to its beginning before each rung, so that it is compiled only once."""

    def __init__(self, agent: str, **settings):
        self.config = complete(preset_config("gym/ladder:Constant-v0", "debug", agent, **SETTINGS | settings))
        self.learner = Learner(self.config, 1, devices=jax.devices()[:1])
        self.fresh = jax.tree.map(jnp.copy, (self.learner.state, self.learner.replay))

    def climb(self, rung: str, passes: int) -> Climb:
        """Random steps, then passes of one step in each environment and the updates that it owes, as in training."""
        config, learner = dataclasses.replace(self.config, task=f"gym/ladder:{rung}-v0"), self.learner
        learner.state, learner.replay = jax.tree.map(jnp.copy, self.fresh)
        learner.updates, learner.totals = 0, None
        envs = Environments([config.env("train") for _ in range(config.envs)], processes=False)
        collector = Collector(config, envs, learner)
        collector.prefill(SimpleNamespace(stop=False))
        collector.new_episodes(0)
        for count in range(passes):
            if count == passes - passes // 4:
                learner.metrics()
            action = collector.act(count)
            learner.update(config.updates_per_step * config.envs)
            collector.send(action)
            collector.receive()
        evaluation = Evaluation(config, learner)
        evaluation.start(0)
        reward = summarise(evaluation.finish())["clean"]["return"]
        return Climb(learner.metrics()[0], reward, float(np.mean(collector.random_returns)))
