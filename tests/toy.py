"""Environments that write into each picture what it is a picture of, and runs of them.

Tasks are named `gym/toy:Counting-v0`. They have a walker's action size, so that both share what is compiled.
"""

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from undistracted.envs import make_env
from undistracted.errors import UserError

COUNTING = "gym/toy:Counting-v0"
STEADY = "gym/toy:Steady-v0"
NEGATIVE = "gym/toy:Negative-v0"
FIELDS = np.dtype([("seed", "u8"), ("episode", "u4"), ("t", "u4"), ("action", "f4", 6), ("reward", "f8")])


class Fact(NamedTuple):
    """All there is to know about one moment of an environment."""

    seed: int
    episode: int
    t: int
    action: tuple[float, ...] = (0.0,) * 6
    reward: float = 0.0


def picture(fact: Fact) -> np.ndarray:
    """The fact's bytes, over and over until the picture is full."""
    return np.tile(np.array([tuple(fact)], FIELDS).view(np.uint8), 64 * 64 * 3 // FIELDS.itemsize).reshape(64, 64, 3)


def read(frame: np.ndarray) -> Fact:
    """The fact that a picture shows; a picture torn from two moments does not repeat itself."""
    copies = np.ascontiguousarray(frame).reshape(-1, FIELDS.itemsize)
    assert (copies == copies[0]).all(), "torn frame"
    seed, episode, t, action, reward = copies[0].view(FIELDS)[0]
    return Fact(int(seed), int(episode), int(t), tuple(action.tolist()), float(reward))


class Counting(gymnasium.Env):
    """Pays its step count and its first action. Even episodes terminate, and tell whether they lasted 5 steps or more;
    odd ones are truncated and tell nothing."""

    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)
    lengths = 3, 6, 4, 7, 5

    @classmethod
    def length_of(cls, fact: Fact) -> int:
        return cls.lengths[(fact.seed + fact.episode) % len(cls.lengths)]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.fact = Fact(self.fact.seed, self.fact.episode + 1, 0) if seed is None else Fact(seed, 0, 0)
        return picture(self.fact), {}

    def step(self, action):
        seed, episode, t, *_ = self.fact
        self.fact = Fact(seed, episode, t + 1, tuple(action.tolist()), float(np.float32(t + 1 + action[0])))
        done, even = t + 1 == self.length_of(self.fact), episode % 2 == 0
        told = {"success": t + 1 >= 5} if even else {}
        return picture(self.fact), self.fact.reward, done and even, done and not even, told


class Steady(Counting):
    """All episodes last 5 steps."""

    lengths = (5,)


class Negative(Counting):
    """The same states in another look."""

    def reset(self, **options):
        obs, info = super().reset(**options)
        return 255 - obs, info

    def step(self, action):
        obs, *rest = super().step(action)
        return 255 - obs, *rest


class Blind(Counting):
    """Has neither pictures nor rendering."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


class Noted(gymnasium.Wrapper):
    """Writes down that it was closed, and keeps its last action, which must stay what it was."""

    def __init__(self, note, **settings):
        super().__init__(make_env(**settings))
        self.note, self.kept = note, None

    def step(self, action):
        assert self.kept is None or np.array_equal(*self.kept), "an action belongs to whom it was given"
        self.kept = action, action.copy()
        return super().step(action)

    def close(self):
        self.note.touch()
        super().close()


class Broken(gymnasium.Env):
    """Breaks at its third step, or, on demand, before its first; or takes its time for its first."""

    observation_space, action_space = Counting.observation_space, Counting.action_space

    def __init__(self, broken=False, takes=0, words="the robot hung up"):
        self.takes, self.words = takes, words
        if broken:
            raise UserError("no such video")

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros((64, 64, 3), np.uint8), {}

    def step(self, action):
        self.t += 1
        if self.t == 1:
            time.sleep(self.takes)
        if self.t == 3:
            raise ConnectionResetError(self.words)  # of the environment's own, not of the pipe to it
        return np.zeros((64, 64, 3), np.uint8), 1.0, False, False, {}


for toy in (Counting, Steady, Negative, Blind):
    gymnasium.register(f"{toy.__name__}-v0", toy)


def check_api(env: gymnasium.Env) -> None:
    """Follows Gymnasium's rules, and those of the pixel environments."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*different from the unwrapped version.*")
        warnings.filterwarnings("ignore", ".*not having a spec.*")
        check_env(env)
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    assert env.action_space == gymnasium.spaces.Box(-1, 1, env.action_space.shape, np.float32)
    frame = env.step(env.action_space.sample())[0]
    assert np.array_equal(env.render(), frame)
    env.close()


def rollout(env, steps, seed=None) -> tuple[np.ndarray, np.ndarray]:
    """Frames (steps + 1, ...) and rewards of random actions."""
    rng = np.random.default_rng(0)
    frames, rewards = [env.reset(seed=seed)[0]], []
    for _ in range(steps):
        frame, reward, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        frames.append(frame)
        rewards.append(reward)
    return np.stack(frames), np.array(rewards)


def follow(rows, env=Counting) -> list[Fact]:
    """What one environment's rows tell, after checking them against the conventions of `data.py`."""
    facts = [read(frame) for frame in rows.obs]
    for i, (fact, action, reward, first) in enumerate(zip(facts, rows.action, rows.reward, rows.first, strict=True)):
        assert (fact.action, fact.reward) == (tuple(action.tolist()), reward), "what led to the picture"
        assert first == (fact.t == 0)
        before = facts[i - 1] if i else None
        if not first:
            assert before is not None and fact[:3] == (*before[:2], before.t + 1), "no step is lost or mixed"
        elif before is not None and fact.seed == before.seed:
            assert fact.episode == before.episode + 1 and before.t == env.length_of(before), "the last row is kept"
        elif before is not None:
            assert fact.episode == 0
    return facts


def episodes_of(facts: list[Fact], env=Counting) -> list[tuple[float, int, float | None]]:
    """Return, length and success of the completed episodes, in order."""
    ends = [fact for fact in facts if fact.t == env.length_of(fact)]
    told = [float(end.t >= 5) if end.episode % 2 == 0 else None for end in ends]
    returns = [sum(fact.reward for fact in facts if fact[:2] == end[:2]) for end in ends]
    return [(total, end.t, success) for total, end, success in zip(returns, ends, told, strict=True)]


def start(*args: str) -> subprocess.Popen:
    """The command line, in a process group of its own."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "undistracted", *map(str, args)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, start_new_session=True, **pipes)


def wait_until(condition, process: subprocess.Popen | None = None) -> None:
    """Wait while the process is at it; should it end before, fail with what it said."""
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
