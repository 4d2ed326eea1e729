"""Environments that write into each picture what it is a picture of; tasks are named `gym/toy:Counting-v0`."""

from typing import NamedTuple

import gymnasium
import numpy as np


class Fact(NamedTuple):
    """All there is to know about one moment of a counting environment."""

    seed: int
    episode: int
    t: int
    action: tuple[float, float]
    reward: float


FIELDS = np.dtype([("seed", "u4"), ("episode", "u4"), ("t", "u4"), ("action", "f4", 2), ("reward", "f4")])


def picture(fact: Fact) -> np.ndarray:
    """The fact's bytes, over and over until the picture is full."""
    return np.tile(np.array([tuple(fact)], FIELDS).view(np.uint8), 64 * 64 * 3 // FIELDS.itemsize).reshape(64, 64, 3)


def read(frame: np.ndarray) -> Fact:
    """The fact that a picture shows; a picture torn from two moments does not repeat itself."""
    copies = np.ascontiguousarray(frame).reshape(-1, FIELDS.itemsize)
    assert (copies == copies[0]).all(), "torn frame"
    seed, episode, t, action, reward = copies[0].view(FIELDS)[0]
    return Fact(int(seed), int(episode), int(t), tuple(action.tolist()), float(reward))


def length_of(seed: int, episode: int) -> int:
    """Episodes last 3 to 7 steps."""
    return 3 + (seed + 3 * episode) % 5


class Counting(gymnasium.Env):
    """Pays its step count and its first action. Even episodes terminate and tell whether they lasted 5 steps or more;
    odd ones are truncated and tell nothing."""

    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.episode = (self.seed, self.episode + 1) if seed is None else (seed, 0)
        self.t = 0
        return picture(Fact(self.seed, self.episode, 0, (0, 0), 0)), {}

    def step(self, action):
        self.t += 1
        reward = np.float32(self.t) + np.float32(action[0])
        frame = picture(Fact(self.seed, self.episode, self.t, tuple(action), reward))
        done, even = self.t == length_of(self.seed, self.episode), self.episode % 2 == 0
        return frame, reward, done and even, done and not even, {"success": self.t >= 5} if even else {}


class Blind(Counting):
    """Has neither pictures nor rendering."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


for toy in (Counting, Blind):
    gymnasium.register(f"{toy.__name__}-v0", toy)
