"""How a machine's costs grow, and updates of learners that have no environments."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax

from undistracted.agents import make_agent
from undistracted.collector import environments
from undistracted.config import Config
from undistracted.learner import Learner
from undistracted.presets import on_gpu
from undistracted.rates import compile_time, environment_rate, fill, say, update_time

ACTIONS = 6  # of learners without environments
GROWING = "batch", "length", "horizon"  # settings that an update's time is measured against


def growth(config, updates: int, heed: Callable[[], None] = lambda: None) -> Iterator[dict]:
    """Environment rate, memory and update time against what they grow with, around the preset's values; each time all
    that is known by then."""
    base = config()
    rates, memory = {}, {}
    for processes in sorted({1, os.cpu_count() // 2, os.cpu_count(), 2 * os.cpu_count()} - {0}):
        with contextlib.closing(environments(config(envs=processes))) as envs:
            rates[processes] = environment_rate(envs)
        say(f"environments in {processes} processes: {rates[processes]:,.0f} steps/s")
        heed()
    yield (known := {"env_steps_per_s": {"processes": rates}})
    for rows in (base.replay_size // 4, base.replay_size // 2, base.replay_size):
        learner = Learner(config(replay_size=rows), ACTIONS)
        held = jax.tree.leaves((learner.replay, learner.state))
        memory[rows] = sum(x.nbytes for x in held if hasattr(x, "nbytes")) / 1e9
        del learner, held
    yield (known := known | {"memory_gb": {"replay_size": memory}})
    values = {name: [getattr(base, name) * factor // 2 for factor in (1, 2, 4)] for name in GROWING}
    values["seeds"] = [1, 2, 4]
    each = lone_update_times({(n, x): config(**{n: x}) for n in values for x in values[n]}, updates, heed)
    yield known | {"update_ms": {n: {x: each[n, x] for x in values[n]} for n in values}}


def lone_update_times(
    configs: dict[Any, Config], updates: int, heed: Callable[[], None] = lambda: None
) -> dict[Any, float]:
    """Of learners without environments, by the names of their settings. They are timed one after the other, but for a
    GPU, where one may take a minute, compiled side by side: on a CPU no two may learn at once (`parts.py`). Equal
    settings are measured once."""
    distinct, times = list(dict.fromkeys(configs.values())), {}
    say(f"compiling {len(distinct)} updates")
    pool = ThreadPoolExecutor(os.cpu_count() if on_gpu() else 1)
    try:
        learners = [pool.submit(lone_learner, config) for config in distinct]
        while wait(learners, timeout=0.5).not_done:
            heed()
        learners = [learner.result() for learner in learners]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C nobody waits for compilers
    for config, learner in zip(distinct, learners, strict=True):
        sizes = f"{config.seeds} x {config.batch} x {config.length} rows, horizon {config.horizon}"
        heed()
        times[config] = update_time(learner, updates)
        say(f"{config.agent}: {sizes}: {times[config]:.2f} ms")
    return {name: times[config] for name, config in configs.items()}


def lone_learner(config: Config) -> Learner:
    """Compiled, with a few rows to learn from."""
    if not hasattr(make_agent(config, ACTIONS), "window"):  # a draw by priority goes over the whole ring
        config = dataclasses.replace(config, replay_size=config.envs * config.length * 2)
    learner = Learner(config, ACTIONS)
    fill(learner, config)
    compile_time(learner)
    return learner
