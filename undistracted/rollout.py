"""Environments in processes that speak in rows (see `data.py`), and the episodes they complete."""

import contextlib
import signal
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector.async_vector_env import _async_worker

from undistracted.data import Batch
from undistracted.envs import make_env
from undistracted.errors import UserError

DEATH = EOFError, BrokenPipeError, ConnectionResetError  # how a pipe tells that the other end is gone


class DeadEnvironment(UserError):
    """An environment's process is gone."""


class Episode(NamedTuple):
    env: int
    reward: float
    length: int
    success: float | None


def worker(index, env_fn, pipe, parent_pipe, shared_memory, error_queue, autoreset_mode, semaphore):
    """An environment's process. Signals are the main process's business; when that is gone, end without a word."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(*DEATH):
        _async_worker(index, env_fn, pipe, parent_pipe, shared_memory, error_queue, autoreset_mode, semaphore)


@contextlib.contextmanager
def reporting_death():
    try:
        yield
    except DEATH as e:
        raise DeadEnvironment("an environment's process died; the run is saved: go on with --resume") from e


class Environments:
    """A vector of environments: each call gives a row of every one; after an episode's last row comes a first one."""

    def __init__(self, settings: list[dict], processes: bool = True, make=make_env):
        make = [partial(make, **s) for s in settings]
        mode = gym.vector.AutoresetMode.NEXT_STEP
        if processes:
            self.vector = gym.vector.AsyncVectorEnv(make, context="forkserver", worker=worker, autoreset_mode=mode)
        else:
            self.vector = gym.vector.SyncVectorEnv(make, autoreset_mode=mode)
        self.count = len(settings)
        self.action_size = self.vector.single_action_space.shape[0]

    def reset(self, seeds: list[int]) -> Batch:
        """First rows of new episodes; the same seeds give the same episodes for the same actions."""
        with reporting_death():
            obs, _ = self.vector.reset(seed=[int(s) for s in seeds])
        self.done = np.zeros(self.count, bool)
        self._clear(np.ones(self.count, bool))
        zero = np.zeros(self.count, np.float32)
        return Batch(obs, np.zeros((self.count, self.action_size), np.float32), zero, np.ones(self.count, bool))

    def send(self, action: np.ndarray) -> None:
        """Let every environment take its action; `receive` fetches the rows."""
        self.action = np.asarray(action, np.float32)
        if isinstance(self.vector, gym.vector.AsyncVectorEnv):
            with reporting_death():
                self.vector.step_async(self.action)

    def receive(self) -> tuple[Batch, list[Episode]]:
        asynchronous = isinstance(self.vector, gym.vector.AsyncVectorEnv)
        with reporting_death():
            result = self.vector.step_wait() if asynchronous else self.vector.step(self.action)
        obs, reward, terminated, truncated, info = result
        first, self.done = self.done, terminated | truncated
        self._clear(first)
        self.returns += np.where(first, 0, reward)
        self.lengths += ~first
        if "success" in info:
            reported = info.get("_success", np.ones(self.count, bool))
            self.success = np.where(reported, np.fmax(self.success, info["success"].astype(float)), self.success)
        row = Batch(obs, np.where(first[:, None], 0, self.action), np.where(first, 0, reward).astype(np.float32), first)
        return row, [self._episode(env) for env in np.flatnonzero(self.done)]

    def close(self) -> None:
        try:
            self.vector.close()
        except DEATH:  # it does not answer; the others end with their pipes
            for pipe in self.vector.parent_pipes:
                pipe.close()
            for process in self.vector.processes:
                process.join()
            self.vector.closed = True

    def _clear(self, mask) -> None:
        if mask.all():
            self.returns, self.lengths = np.zeros(self.count), np.zeros(self.count, int)
            self.success = np.full(self.count, np.nan)
        self.returns[mask], self.lengths[mask], self.success[mask] = 0, 0, np.nan

    def _episode(self, env: int) -> Episode:
        success = None if np.isnan(self.success[env]) else float(self.success[env])
        return Episode(int(env), float(self.returns[env]), int(self.lengths[env]), success)
