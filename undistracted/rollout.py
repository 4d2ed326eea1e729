"""Environments in processes that speak in rows (see `data.py`), and the episodes they complete."""

from functools import partial
from typing import NamedTuple

import numpy as np

from undistracted.data import Batch
from undistracted.envs import make_env
from undistracted.errors import UserError
from undistracted.workers import RESET, STEP, Here, Workers


class Diverged(UserError):
    """What was learned is worth nothing any more."""

    def __init__(self):
        super().__init__("the policy or what it learns from is not finite: learning has diverged; try lower rates")


class Episode(NamedTuple):
    env: int
    reward: float
    length: int
    success: float | None


def episode_seeds(sources: list[list[int]]) -> list[int]:
    """A seed out of each source of randomness, some numbers that say which run, when and where."""
    return [np.random.SeedSequence(source).generate_state(1)[0] for source in sources]


class Environments:
    """A vector of environments: each call gives a row of every one; after an episode's last row comes a first one."""

    def __init__(self, settings: list[dict], processes: bool = True, make=make_env):
        self.workers = (Workers if processes else Here)([partial(make, **s) for s in settings])
        self.count = len(settings)
        self.action_size = self.workers.spaces[1].shape[0]

    def reset(self, seeds: list[int]) -> Batch:
        """First rows of new episodes; the same seeds give the same episodes for the same actions."""
        self.workers.rows.seed[:] = seeds
        self.workers.tell(RESET)
        self.workers.wait()
        self.done = np.zeros(self.count, bool)
        self._clear(np.ones(self.count, bool))
        zero = np.zeros(self.count, np.float32)
        action = np.zeros((self.count, self.action_size), np.float32)
        return Batch(self.workers.rows.obs.copy(), action, zero, np.ones(self.count, bool))

    def send(self, action: np.ndarray) -> None:
        """Let every environment take its action; `receive` fetches the rows."""
        self.action = np.asarray(action, np.float32)
        if not np.isfinite(self.action).all():
            raise Diverged
        self.workers.rows.action[:] = self.action
        self.workers.tell(STEP)

    def receive(self) -> tuple[Batch, list[Episode]]:
        self.workers.wait()
        rows = self.workers.rows
        first, self.done = self.done, rows.over.copy()
        self._clear(first)
        self.returns += rows.reward
        self.lengths += ~first
        self.success = np.fmax(self.success, rows.success)
        action = np.where(first[:, None], 0, self.action)
        row = Batch(rows.obs.copy(), action, rows.reward.astype(np.float32), first)
        return row, [self._episode(env) for env in np.flatnonzero(self.done)]

    def close(self) -> None:
        self.workers.close()

    def _clear(self, mask) -> None:
        if mask.all():
            self.returns, self.lengths = np.zeros(self.count), np.zeros(self.count, int)
            self.success = np.full(self.count, np.nan)
        self.returns[mask], self.lengths[mask], self.success[mask] = 0, 0, np.nan

    def _episode(self, env: int) -> Episode:
        success = None if np.isnan(self.success[env]) else float(self.success[env])
        return Episode(int(env), float(self.returns[env]), int(self.lengths[env]), success)
