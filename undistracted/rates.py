"""How each rate of a machine is taken, of a learner or of environments that are there already."""

import sys
import time
from statistics import median

import jax
import numpy as np

from undistracted.config import Config
from undistracted.data import Batch, by_seed
from undistracted.learner import Learner
from undistracted.rollout import Environments

ROUNDS = 5  # that are timed; one alone is thrown off by whatever else the machine does meanwhile


def fill(learner: Learner, config: Config) -> None:
    """Random rows, two sequences long."""
    rng = np.random.default_rng(0)
    shape, actions = (config.seeds, config.envs), learner.agent.action_size
    for t in range(2 * config.length):
        obs = rng.integers(0, 256, (*shape, 64, 64, 3), np.uint8)
        action = rng.uniform(-1, 1, (*shape, actions)).astype(np.float32)
        learner.add(Batch(obs, action, rng.uniform(0, 2, shape).astype(np.float32), np.full(shape, t == 0)))


def compile_time(learner: Learner) -> float:
    """Until the first updates are done, in seconds."""
    began = time.perf_counter()
    learner.update(learner.block)
    jax.block_until_ready(learner.state)
    return time.perf_counter() - began


def update_time(learner: Learner, updates: int) -> float:
    """Of one gradient step of all seeds: the median of rounds, after one in which a GPU also records graphs."""
    times = []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        done = learner.update(max(updates, learner.block))
        jax.block_until_ready(learner.state)
        times.append(1e3 * (time.perf_counter() - began) / done)
    return median(times[1:])


def policy_time(learner: Learner, config: Config, repeats: int = 50) -> float:
    """From pictures on the host to actions on the host, for all environments in one call."""
    row = Batch(*(np.asarray(x) for x in Batch.zeros((config.seeds, config.envs), learner.agent.action_size)))
    carry = learner.initial_carry(config.envs)
    for repeat in range(repeats + 1):
        if repeat == 1:
            began = time.perf_counter()
        action, carry = learner.act(carry, row, repeat)
        np.asarray(action)
    return 1e3 * (time.perf_counter() - began) / repeats


def environment_rate(envs: Environments, repeats: int = 200) -> float:
    """Of all environments together: the median of rounds."""
    rng, rates = np.random.default_rng(0), []
    envs.reset(list(range(envs.count)))
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        for _ in range(repeats):
            envs.send(rng.uniform(-1, 1, (envs.count, envs.action_size)))
            envs.receive()
        rates.append(repeats * envs.count / (time.perf_counter() - began))
    return median(rates[1:])


def end_to_end_rate(learner: Learner, envs: Environments, config: Config, repeats: int = 50) -> float:
    """Acting, learning, stepping and storing as in training, without evaluations: the median of rounds."""
    row, debt, rates = by_seed(envs.reset(list(range(envs.count))), config.seeds), 0.0, []
    carry = learner.initial_carry(config.envs)
    for first in range(0, (1 + ROUNDS) * repeats, repeats):
        began = time.perf_counter()
        for count in range(first, first + repeats):
            action, carry = learner.act(carry, row, count)
            debt += config.updates_per_step * config.envs
            debt -= learner.update(debt)
            envs.send(np.asarray(action).reshape(envs.count, -1))
            row = by_seed(envs.receive()[0], config.seeds)
            learner.add(row)
        jax.block_until_ready(learner.state)
        rates.append(repeats * config.envs / (time.perf_counter() - began))
    return median(rates[1:])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
