"""The training environments of every seed, and the rows they give to the replay."""

import numpy as np

from undistracted.config import Config
from undistracted.data import by_seed
from undistracted.envs import clips_of
from undistracted.evaluation import splits_of
from undistracted.learner import Learner
from undistracted.rollout import Environments, episode_seeds


class Collector:
    """Holds the newest row (S, E, ...) and the policy's memory; every row it receives goes into the replay."""

    def __init__(self, config: Config, envs: Environments, learner: Learner):
        self.config, self.envs, self.learner = config, envs, learner
        self.returns = [[] for _ in range(config.seeds)]  # of each seed's last episodes
        self.random_returns: list[float] = []  # of the prefill's

    def new_episodes(self, *source: int) -> None:
        """Reset all environments; the same source of randomness gives the same episodes, in a resumed run too."""
        c = self.config
        sequences = [[c.seed + s, *source, i] for s in range(c.seeds) for i in range(c.envs)]
        row = self.envs.reset(episode_seeds(sequences))
        self.row, self.carry = by_seed(row, c.seeds), self.learner.initial_carry(c.envs)
        self.learner.add(self.row)

    def act(self, count: int):
        """Ask the device for exploring actions; the count of passes is their source of randomness."""
        action, self.carry = self.learner.act(self.carry, self.row, count)
        return action

    def send(self, action) -> None:
        """Hand actions (S, E, A) to the environments."""
        self.envs.send(np.asarray(action).reshape(self.envs.count, -1))

    def receive(self) -> list[float]:
        """Put the environments' rows into the replay; the returns of the episodes that they complete."""
        row, episodes = self.envs.receive()
        self.row = by_seed(row, self.config.seeds)
        self.learner.add(self.row)
        for episode in episodes:
            seed = episode.env // self.config.envs
            self.returns[seed] = [*self.returns[seed], episode.reward][-self.config.envs :]
        return [episode.reward for episode in episodes]

    @property
    def steps(self) -> int:
        """Agent steps of all environments and seeds in the newest row."""
        return int((~self.row.first).sum())

    def prefill(self, trainer) -> None:
        """Random actions until the replay can be learned from; they also tell the random policy's return."""
        c, steps = self.config, 0
        rngs = [np.random.default_rng([c.seed + s, 1]) for s in range(c.seeds)]
        self.new_episodes(1)
        while steps < c.prefill * c.seeds and not trainer.stop:
            self.send(np.stack([rng.uniform(-1, 1, (c.envs, self.envs.action_size)) for rng in rngs]))
            self.random_returns += self.receive()
            steps += self.steps
        self.returns = [[] for _ in range(c.seeds)]


def environments(config: Config) -> Environments:
    """Those that every seed trains in."""
    settings = [config.env("train", seed) for seed in range(config.seeds) for _ in range(config.envs)]
    return Environments(settings, config.processes)


def clip_names(config: Config) -> dict[str, list[str]]:
    """Which clips each split uses, where there are splits; decodes them once, before the workers start."""
    return {
        split: list(clips_of(config.videos, split, config.color, config.protocol, config.seed).names)
        for split in splits_of(config.task)
        if split != "clean"
    }
