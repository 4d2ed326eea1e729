"""Rates of this machine: the learner's update, the policy's step, the environments, and all of them together."""

import contextlib
import gc
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from undistracted.adapt.agent import AdaptingAgent, Data
from undistracted.adapt.config import preset_adapt
from undistracted.agents import AGENTS, make_agent
from undistracted.agents.latent import LatentAgent
from undistracted.collector import environments
from undistracted.config import Config
from undistracted.data import IMAGE
from undistracted.growth import ACTIONS, growth, lone_update_times
from undistracted.learner import Learner
from undistracted.presets import complete, preset_config
from undistracted.rates import compile_time, end_to_end_rate, environment_rate, fill, policy_time, say, update_time

PAPER_STEPS = 500_000
ADAPT_STEPS, PAIRS = 50_000, 5_000  # of an adaptation, as in the paper
SEEDS = 4  # trained at once, where several are
CPU_FACTS = Path("/proc/cpuinfo")


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
    with contextlib.closing(environments(config(envs=1))) as envs:
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

    with contextlib.closing(environments(config)) as envs:
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
    with contextlib.closing(environments(config)) as envs:
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


def peak_memory() -> float | None:
    """The most that the device has held so far, in GB, where it tells; of a CPU, this process without environments'."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    stats = device.memory_stats() or {}
    return stats["peak_bytes_in_use"] / 1e9 if "peak_bytes_in_use" in stats else None


def print_bench(result: dict, indent: str = "") -> None:
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            print_bench(value, indent + "  ")
        else:
            shown = "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else value
            print(f"{indent}{name!s:26s} {shown}")
