"""Rates of this machine: the learner's update, the policy's step, the environments, and all of them together."""

import contextlib
import dataclasses
import gc
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from undistracted.adapt.agent import AdaptingAgent, Data
from undistracted.adapt.config import preset_adapt
from undistracted.agents import AGENTS, make_agent
from undistracted.agents.latent import LatentAgent
from undistracted.config import Config
from undistracted.data import IMAGE
from undistracted.learner import Learner
from undistracted.presets import complete, on_gpu, preset_config
from undistracted.rates import compile_time, end_to_end_rate, environment_rate, fill, policy_time, update_time
from undistracted.rollout import Environments

PAPER_STEPS = 500_000
ADAPT_STEPS, PAIRS = 50_000, 5_000  # of an adaptation, as in the paper
SEEDS = 4  # trained at once, where several are
GROWING = "batch", "length", "horizon"  # settings that an update's time is measured against
CPU_FACTS = Path("/proc/cpuinfo")
ACTIONS = 6  # of the learners that are measured without environments


@dataclass(frozen=True)
class BenchConfig:
    """Measure this machine."""

    agent: str = "repo"
    """The method to measure."""
    task: str = "distracted/walker-walk"
    """The task to measure on."""
    preset: Literal["auto", "paper", "original", "small", "debug"] = "auto"
    """Sizes to measure at."""
    updates: int = 50
    """Updates to a round of those that are timed."""
    agents: bool = False
    """Measure also one update of every agent, under `agents`."""
    growth: bool = False
    """Measure also how costs grow with batch, length, horizon, seeds, processes and replay (many minutes)."""
    json: bool = False
    """Print one JSON object on stdout and nothing else there."""


def bench(options: BenchConfig, result: dict | None = None, heed: Callable[[], None] = lambda: None) -> dict:
    """The rates as a dictionary; times in milliseconds, rates in agent steps per second. A `result` that is given has
    each as soon as it is known, so that what fails or is stopped later does not take it along; `heed` is called between
    them, and may raise."""
    result = {} if result is None else result
    with contextlib.closing(figures(options, heed)) as known:
        for figure in known:
            result.update(figure)
            heed()
    return result


def figures(options: BenchConfig, heed: Callable[[], None]) -> Iterator[dict]:
    def config(agent=options.agent, **changes) -> Config:
        return complete(preset_config(options.task, options.preset, agent, **changes))

    preset = config().preset
    machine = f"{device_name()}, {os.cpu_count()} cores, JAX {jax.__version__}"
    say(f"{options.agent} at preset {preset} on {machine}")
    yield {"machine": machine, "agent": options.agent, "preset": preset}
    yield from ({name: value} for name, value in measure(config(), options.updates))
    for name, value in measure(config(seeds=SEEDS), options.updates):
        each = name == "update_ms"
        yield {f"update_ms_per_seed_{SEEDS}": value / SEEDS} if each else {f"{name}_{SEEDS}_seeds": value}
    if isinstance(make_agent(config(), ACTIONS), LatentAgent):  # others cannot be adapted
        yield measure_adaptation(config(), options.updates)
    with environments(config(envs=1)) as envs:
        yield {"env_steps_per_s_1_process": environment_rate(envs)}
    if options.growth:
        yield from ({"growth": costs} for costs in growth(config, options.updates, heed))
    if options.agents:
        yield {"agents": lone_update_times({name: config(name) for name in AGENTS}, options.updates, heed)}


def device_name() -> str:
    """Of what learns. JAX calls every CPU "cpu"; Linux mostly knows more."""
    device = jax.devices()[0]
    facts = CPU_FACTS.read_text() if device.platform == "cpu" and CPU_FACTS.exists() else ""
    names = [line.partition(": ")[2] for line in facts.split("\n") if line.startswith("model name")]
    return names[0] if names else device.device_kind


def measure(config: Config, updates: int) -> Iterator[tuple[str, float | None]]:
    """All rates of one configuration, one after the other; of several seeds, the environments' is of all together, and
    that from end to end of each."""
    say(f"measuring {config.seeds} seed{'s' * (config.seeds > 1)}")
    gc.collect()  # a learner's compiled calls refer to it: what was measured before would stay

    def known(name: str, value: float | None) -> tuple[str, float | None]:
        if value is not None:
            say(f"  {name} {value:,.2f}")
        return name, value

    with environments(config) as envs:
        yield known("env_steps_per_s", environment_rate(envs))
        learner = Learner(config, envs.action_size)
        fill(learner, config)
        yield known("compile_s", compile_time(learner))
        yield known("update_ms", update_time(learner, updates))
        yield known("policy_ms", policy_time(learner, config))
        yield known("end_to_end_steps_per_s", rate := end_to_end_rate(learner, envs, config))
    yield known("paper_run_minutes", PAPER_STEPS / rate / 60)
    yield known("peak_memory_gb", peak_memory())


def measure_adaptation(config: Config, updates: int) -> dict:
    """A step of calibrated support constraint, and the minutes that the paper's adaptation takes."""
    say("measuring adaptation")
    with environments(config) as envs:
        agent = AdaptingAgent(make_agent(config, envs.action_size), preset_adapt("", config.task))
        size = jax.eval_shape(agent.init, jax.random.key(0)).policy.model.encoder.size
        source, pairs = (np.zeros((config.seeds, n, size), np.float16) for n in (config.replay_size, PAIRS))
        data = Data(source, pairs, np.zeros((config.seeds, PAIRS, *IMAGE), np.uint8))
        learner = Learner(config, envs.action_size, agent=agent, data=(data,))
        fill(learner, config)
        compile_time(learner)
        step = update_time(learner, updates)
        rate = end_to_end_rate(learner, envs, config)
    return {"adapt_step_ms": step, "adapt_run_minutes": ADAPT_STEPS / rate / 60}


def growth(config, updates: int, heed: Callable[[], None] = lambda: None) -> Iterator[dict]:
    """Environment rate, memory and update time against what they grow with, around the preset's values; each time all
    that is known by then."""
    base = config()
    rates, memory = {}, {}
    for processes in sorted({1, os.cpu_count() // 2, os.cpu_count(), 2 * os.cpu_count()} - {0}):
        with environments(config(envs=processes)) as envs:
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


def peak_memory() -> float | None:
    """The most that the device has held so far, in GB, where it tells."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats["peak_bytes_in_use"] / 1e9 if "peak_bytes_in_use" in stats else None


@contextlib.contextmanager
def environments(config: Config):
    settings = [config.env("train", seed) for seed in range(config.seeds) for _ in range(config.envs)]
    envs = Environments(settings, config.processes)
    try:
        yield envs
    finally:
        envs.close()


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


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_bench(result: dict, indent: str = "") -> None:
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            print_bench(value, indent + "  ")
        else:
            shown = "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else value
            print(f"{indent}{name!s:26s} {shown}")
