"""Rates of this machine: the learner's update, the policy's step, the environments, and all of them together."""

import os
import sys
import time
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np

from undistracted.config import Config
from undistracted.data import Batch
from undistracted.learner import Learner
from undistracted.presets import complete, preset_config
from undistracted.rollout import Environments

PAPER_STEPS = 500_000


@dataclass(frozen=True)
class BenchConfig:
    """Measure this machine."""

    agent: str = "repo"
    """The method to measure."""
    task: str = "distracted/walker-walk"
    """The task to measure on."""
    preset: Literal["auto", "paper", "small", "debug"] = "auto"
    """Sizes to measure at."""
    updates: int = 50
    """Updates to time, after one that compiles."""
    json: bool = False
    """Print one JSON object on stdout and nothing else there."""


def bench(options: BenchConfig) -> dict:
    """The rates as a dictionary; times in milliseconds, rates in agent steps per second."""
    config = complete(preset_config(options.task, options.preset, agent=options.agent))
    say(f"{config.agent} at preset {config.preset} on {jax.devices()[0].device_kind}, {os.cpu_count()} cores")
    envs = Environments([config.env("train") for _ in range(config.envs)], config.processes)
    try:
        env_rate = environment_rate(envs)
        learner = Learner(config, envs.action_size)
        fill(learner, config)
        result = {
            "machine": f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, JAX {jax.__version__}",
            "agent": config.agent,
            "preset": config.preset,
            "update_ms": update_time(learner, options.updates),
            "policy_ms": policy_time(learner, config),
            "env_steps_per_s": env_rate,
            "end_to_end_steps_per_s": end_to_end_rate(learner, envs, config),
        }
    finally:
        envs.close()
    result["paper_run_minutes"] = PAPER_STEPS / result["end_to_end_steps_per_s"] / 60
    stats = jax.devices()[0].memory_stats() or {}
    result["peak_memory_gb"] = stats["peak_bytes_in_use"] / 1e9 if "peak_bytes_in_use" in stats else None
    return result


def fill(learner: Learner, config: Config) -> None:
    """Random rows, two sequences long."""
    rng = np.random.default_rng(0)
    shape, actions = (config.seeds, config.envs), learner.agent.action_size
    for t in range(2 * config.length):
        obs = rng.integers(0, 256, (*shape, 64, 64, 3), np.uint8)
        action = rng.uniform(-1, 1, (*shape, actions)).astype(np.float32)
        learner.add(Batch(obs, action, rng.uniform(0, 2, shape).astype(np.float32), np.full(shape, t == 0)))


def update_time(learner: Learner, updates: int) -> float:
    learner.update(learner.block)
    jax.block_until_ready(learner.state)
    began = time.perf_counter()
    done = learner.update(max(updates, learner.block))
    jax.block_until_ready(learner.state)
    return 1e3 * (time.perf_counter() - began) / done


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
    rng = np.random.default_rng(0)
    envs.reset(list(range(envs.count)))
    for repeat in range(repeats + 10):
        if repeat == 10:
            began = time.perf_counter()
        envs.send(rng.uniform(-1, 1, (envs.count, envs.action_size)))
        envs.receive()
    return repeats * envs.count / (time.perf_counter() - began)


def end_to_end_rate(learner: Learner, envs: Environments, config: Config, repeats: int = 50) -> float:
    """Acting, learning, stepping and storing as in training, without evaluations."""

    def by_seed(row):
        return jax.tree.map(lambda x: x.reshape(config.seeds, -1, *x.shape[1:]), row)

    row, carry, debt = by_seed(envs.reset(list(range(envs.count)))), learner.initial_carry(config.envs), 0.0
    for repeat in range(repeats):
        action, carry = learner.act(carry, row, repeat)
        debt += config.updates_per_step * config.envs
        debt -= learner.update(debt)
        envs.send(np.asarray(action).reshape(envs.count, -1))
        if repeat == 0:
            began = time.perf_counter()
        row = by_seed(envs.receive()[0])
        learner.add(row)
    jax.block_until_ready(learner.state)
    return repeats * config.envs / (time.perf_counter() - began)


def say(text: str) -> None:
    print(text, file=sys.stderr)


def print_bench(result: dict) -> None:
    for name, value in result.items():
        print(f"{name:26s} {value:,.2f}" if isinstance(value, float) else f"{name:26s} {value}")
