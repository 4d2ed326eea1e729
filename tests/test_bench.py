"""What `undistracted bench` reports; its figures are not tested, only that they are there and make sense."""

import json
import signal
import threading
import time

import jax
import pytest
from toy import STEADY

from undistracted import bench
from undistracted.__main__ import main
from undistracted.agents import AGENTS
from undistracted.bench import lone_update_times, print_bench
from undistracted.interrupt import asked_to_stop
from undistracted.presets import complete, preset_config

KEYS = [
    "update_ms",
    "update_ms_per_seed_4",
    "policy_ms",
    "env_steps_per_s",
    "env_steps_per_s_1_process",
    "end_to_end_steps_per_s",
    "paper_run_minutes",
    "paper_run_minutes_4_seeds",
    "compile_s",
]
KEYS += [f"{name}_4_seeds" for name in ("policy_ms", "env_steps_per_s", "end_to_end_steps_per_s", "compile_s")]
ADAPTATION = ["adapt_step_ms", "adapt_run_minutes"]
WHOLE = {"repo": KEYS + ADAPTATION, "dbc": KEYS}


@pytest.mark.parametrize(
    ("facts", "name"),
    [("processor\t: 0\nmodel name\t: Quick 7: a CPU\n", "Quick 7: a CPU"), ("CPU part\t: 0xd0c\n", "cpu")],
)
def test_a_cpu_has_its_own_name_where_linux_knows_it(tmp_path, monkeypatch, facts, name):
    cpus = jax.devices("cpu")
    monkeypatch.setattr(bench.jax, "devices", lambda: cpus)
    monkeypatch.setattr(bench, "CPU_FACTS", tmp_path / "cpuinfo")
    assert bench.device_name() == "cpu", "without any facts"
    (tmp_path / "cpuinfo").write_text(facts)
    assert bench.device_name() == name


@pytest.mark.parametrize(("agent", "keys"), WHOLE.items())
def test_bench_reports_every_rate_as_json(capsys, agent, keys):
    """Of an agent without a world model, which cannot be adapted, too."""
    task = ["--task", STEADY] if agent == "dbc" else []
    assert main(["bench", "--agent", agent, *task, "--preset", "debug", "--updates", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["agent"], result["preset"]) == (agent, "debug") and "cores" in result["machine"]
    assert result.keys() == {"machine", "agent", "preset", "peak_memory_gb", "peak_memory_gb_4_seeds", *keys}
    assert all(result[key] > 0 for key in keys)
    assert result["paper_run_minutes"] * result["end_to_end_steps_per_s"] * 60 / 500_000 == pytest.approx(1)


@pytest.mark.parametrize("agent", [name for name in AGENTS if name not in WHOLE])
def test_update_of_every_agent_can_be_measured(agent):
    """Of those, too, whose whole bench is not run here."""
    small = dict(channels=(4, 4), shrink=4)
    config = complete(preset_config(STEADY, "debug", agent, **small))
    assert lone_update_times({"one": config}, 1)["one"] > 0


@pytest.mark.parametrize(("agent", "rows"), [("tdmpc", 1_000), ("dbc", 2 * 4 * 2)])
def test_ring_is_whole_where_every_draw_goes_over_it(monkeypatch, agent, rows):
    """Others draw from a few rows as fast as from many, and are spared the memory."""
    for name in ("fill", "compile_time"):
        monkeypatch.setattr(bench, name, lambda *_: None)
    monkeypatch.setattr(bench, "update_time", lambda learner, updates: learner.replay.rows.reward.size)
    assert lone_update_times({agent: complete(preset_config(STEADY, "debug", agent))}, 1) == {agent: rows}


def test_agents_are_all_measured(monkeypatch):
    """Each at its own sizes; that each can be, the tests above show."""
    monkeypatch.setattr(bench, "measure", lambda *_: [])
    monkeypatch.setattr(bench, "measure_adaptation", lambda *_: {})
    monkeypatch.setattr(bench, "environment_rate", lambda envs: 1.0)
    monkeypatch.setattr(bench, "lone_update_times", lambda configs, *_: {n: c.agent for n, c in configs.items()})
    result = bench.bench(bench.BenchConfig(preset="debug", task=STEADY, agents=True))
    assert result["agents"] == {name: name for name in AGENTS}


def test_what_is_known_is_printed_when_the_rest_is_stopped(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure", lambda *_: [("update_ms", 1.0), ("paper_run_minutes", 2.0)])
    monkeypatch.setattr(bench, "measure_adaptation", stopped)
    assert main(["bench", "--preset", "debug", "--json"]) == 130
    result = json.loads(capsys.readouterr().out)
    assert (result["update_ms"], result["update_ms_per_seed_4"], result["paper_run_minutes_4_seeds"]) == (1, 0.25, 2)


def test_updates_are_compiled_side_by_side_for_a_gpu_and_timed_one_by_one(monkeypatch):
    """All compilations have begun before the first is done, all are done before the first timing, and the same
    settings under two names are measured once."""
    log, both = [], threading.Barrier(2, timeout=30)
    monkeypatch.setattr(bench, "on_gpu", lambda: True)
    monkeypatch.setattr(bench, "lone_learner", lambda config: log.append(both.wait() >= 0) or config.batch)
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(bench, "update_time", lambda learner, updates: log.append(learner) or float(learner))
    four, eight = (preset_config(STEADY, "debug", batch=n) for n in (4, 8))
    assert lone_update_times({"a": four, "b": eight, "c": four}, 1) == {"a": 4.0, "b": 8.0, "c": 4.0}
    assert log == [True, True, 4, 8]


def test_ctrl_c_does_not_wait_for_compilers(monkeypatch):
    compiled, begun = threading.Event(), threading.Event()

    def long(config):
        begun.set()
        assert compiled.wait(30)

    monkeypatch.setattr(bench, "lone_learner", long)
    (give_up := threading.Timer(10, compiled.set)).start()
    with asked_to_stop() as request, pytest.raises(KeyboardInterrupt):
        threading.Thread(target=lambda: begun.wait(10) and signal.raise_signal(signal.SIGINT)).start()
        lone_update_times({n: preset_config(STEADY, "debug", batch=n) for n in (4, 8)}, 1, request.heed)
    assert begun.is_set() and not compiled.is_set()
    give_up.cancel()
    compiled.set()


def test_no_two_learners_learn_at_once_on_a_cpu(monkeypatch):
    threads = set()
    monkeypatch.setattr(bench, "lone_learner", lambda _: time.sleep(0.05) or threads.add(threading.get_ident()))
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(bench, "update_time", lambda learner, updates: 1.0)
    lone_update_times({n: preset_config(STEADY, "debug", batch=n) for n in (2, 4, 8)}, 1)
    assert len(threads) == 1


def test_growth_is_of_half_the_preset_its_own_and_twice_as_much(monkeypatch):
    monkeypatch.setattr(bench, "lone_update_times", lambda configs, *_: configs)
    monkeypatch.setattr(bench, "environment_rate", lambda envs: envs.count)
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 1)
    *_, result = bench.growth(lambda **changes: complete(preset_config(STEADY, "debug", **changes)), 1)
    for name, values in dict(batch=[2, 4, 8], length=[4, 8, 16], horizon=[2, 4, 8], seeds=[1, 2, 4]).items():
        assert {x: getattr(c, name) for x, c in result["update_ms"][name].items()} == {x: x for x in values}
    assert result["env_steps_per_s"] == {"processes": {1: 1, 2: 2}}
    frames = 64 * 64 * 3 / 1e9
    small, _, whole = (result["memory_gb"]["replay_size"][rows] for rows in (250, 500, 1_000))
    assert whole - small == pytest.approx(750 * frames, rel=0.01)


def test_growth_is_printed_as_an_outline(capsys):
    print_bench({"update_ms": 4.0, "peak_memory_gb": None, "seeds": 2, "growth": {"update_ms": {"batch": {25: 2.0}}}})
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["update_ms", "4.00"],
        ["peak_memory_gb", "-"],
        ["seeds", "2"],
        ["growth"],
        ["update_ms"],
        ["batch"],
        ["25", "2.00"],
    ]
