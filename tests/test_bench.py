"""What `undistracted bench` reports; its figures are not tested, only that they are there and make sense."""

import json

import jax
import pytest
from toy import STEADY

from undistracted import bench
from undistracted.__main__ import main
from undistracted.agents import AGENTS
from undistracted.bench import lone_update_times, print_bench
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
    "peak_memory_gb",
    "peak_memory_gb_4_seeds",
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
    assert result.keys() == {"machine", "agent", "preset", *keys}
    assert all(result[key] > 0 for key in keys)
    assert result["paper_run_minutes"] * result["end_to_end_steps_per_s"] * 60 / 500_000 == pytest.approx(1)


@pytest.mark.parametrize("agent", [name for name in AGENTS if name not in WHOLE])
def test_update_of_every_agent_can_be_measured(agent):
    """Of those, too, whose whole bench is not run here."""
    small = dict(channels=(4, 4), shrink=4)
    config = complete(preset_config(STEADY, "debug", agent, **small))
    assert lone_update_times({"one": config}, 1)["one"] > 0


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
