"""A user's mistake is one line that says what to do, and exit code 2."""

import errno
import json
import tomllib
from pathlib import Path

import pytest
from toy import start

from undistracted.__main__ import main
from undistracted.presets import PRESETS

WALKER = "distracted/walker-walk"
MISTAKES = {
    "verb": (["trian"], "did you mean 'train'"),
    "task": (["train", "distracted/walker-wlak"], "did you mean 'distracted/walker-walk'"),
    "no task": (["train"], "What to learn"),
    "agent": (["train", WALKER, "--agent", "repoo"], "did you mean 'repo'"),
    "flag": (["train", WALKER, "--setps", "10"], "--setps"),
    "preset": (["train", WALKER, "--preset", "big"], "auto, paper, tuned, original, small, debug"),
    "not tuned": (["train", WALKER, "--preset", "tuned", "--agent", "dbc"], "--preset paper for dbc"),
    "value": (["train", WALKER, "--steps", "1e4"], "--steps takes a whole number, not '1e4'"),
    "number": (["train", WALKER, "--epsilon", "3,0"], "--epsilon takes a number, not '3,0'"),
    "choice": (["train", WALKER, "--protocol", "mine"], "official"),
    "negative": (["train", WALKER, "--steps", "-1"], "--steps is -1"),
    "seed": (["train", WALKER, "--seed", "-1"], "--seed is -1"),
    "nothing": (["train", WALKER, "--envs", "0"], "--envs is 0"),
    "agent's own": (["train", WALKER, "--agent", "dbc", "--sac.actor-every", "0"], "--sac.actor-every is 0"),
    "no y": (["train", WALKER, "--agent", "denoised-mdp", "--denoised.y-state", "-1"], "--denoised.y-state is -1"),
    "policy": (["train", WALKER, "--actor-std", "0"], "--actor-std is 0.0; it must be above 0"),
    "price": (["train", WALKER, "--beta0", "0"], "--beta0 is 0.0; it must be above 0"),
    "rate": (["train", WALKER, "--model-lr", "nan"], "--model-lr is nan"),
    "discount": (["train", WALKER, "--gamma", "1.5"], "--gamma is 1.5; it must be between 0 and 1"),
    "balance": (["train", WALKER, "--r", "-1"], "--r is -1.0; it must not be negative"),
    "depth": (["train", WALKER, "--reward-depth", "-1"], "--reward-depth is -1"),
    "shrink": (["train", WALKER, "--shrink", "0"], "--shrink is 0"),
    "prefill": (["train", WALKER, "--preset", "debug", "--prefill", "10"], "--prefill 16 or more"),
    "no videos": (["train", WALKER, "--videos", "nosuchfolder"], "no video folder at 'nosuchfolder'"),
    "empty videos": (["train", WALKER, "--videos", "empty"], "no video files in"),
    "discrete": (["train", "gym/CartPole-v1"], "Discrete actions"),
    "blind": (["train", "gym/toy:Blind-v0"], "shows no pixels"),
    "module": (["train", "gym/nosuchmodule:Env-v0"], "cannot import 'nosuchmodule'"),
    "resume": (["train", WALKER, "--resume", "--run", "empty"], "empty is not a run directory"),
    "occupied": (["train", WALKER, "--run", "occupied"], "occupied already holds a run; continue it with --resume"),
    "another": (["train", "dmc/walker-run", "--resume", "--run", "occupied"], "occupied holds repo on dmc/walker-walk"),
    "changed": (
        ["train", "dmc/walker-walk", "--resume", "--run", "occupied", "--batch", "8"],
        "--batch is 50 in occupied",
    ),
    "run for task": (["train", "--resume", "runs/mine"], "'runs/mine'"),
    "no run": (["evaluate", "empty"], "empty is not a run directory"),
    "untrained": (["evaluate", "untrained"], "no checkpoint in untrained"),
    "cut short": (["evaluate", "cut"], "config.json is damaged"),
    "another version": (["evaluate", "other"], "does not hold this version's settings"),
    "split": (["evaluate", "occupied", "--split", "mine"], "mine"),
    "episodes": (["evaluate", "occupied", "--episodes", "0"], "--episodes is 0"),
    "film": (["evaluate", "occupied", "--video", "film.gif"], "films are .mp4 files"),
    "film's folder": (["evaluate", "occupied", "--video", "/proc/film.mp4"], "cannot write to /proc"),
    "run's folder": (["train", WALKER, "--run", "/proc/run"], "cannot write to /proc/run"),
    "toy's folder": (["toy", "--out", "/proc/toy"], "cannot write to /proc/toy"),
    "surplus": (["tasks", "all"], "takes no arguments"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with runs that were never run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for run in ("occupied", "untrained"):
        (tmp_path / run).mkdir()
        settings = {"task": "dmc/walker-walk", "channels": [4, 4, 4, 4]}
        (tmp_path / run / "config.json").write_text(json.dumps(settings))
    for run, text in (
        ("cut", '{"task": "dmc/walker'),
        ("other", '{"task": "dmc/walker-walk", "channels": [4], "gone": 1}'),
    ):
        (tmp_path / run).mkdir()
        (tmp_path / run / "config.json").write_text(text)
    whole = tmp_path / "occupied" / "checkpoints" / "000000100"
    whole.mkdir(parents=True)
    (whole / "counters.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, folder, capsys):
    arguments, words = MISTAKES[name]
    assert main(arguments) == 2
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert line.startswith("error: ") and words in line
    assert not output.out and not set("│─╭") & set(line) and "----" not in line


def test_a_full_disk_is_one_line_and_a_defect_a_traceback(monkeypatch, capsys):
    def fail(error):
        def run(args):
            raise error

        monkeypatch.setattr("undistracted.__main__.run_tasks", run)
        return main(["tasks"])

    assert fail(OSError(errno.ENOSPC, "No space left on device", "runs/x/config.json")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "No space left" in line and "runs/x/config.json" in line
    with pytest.raises(ConnectionResetError):
        fail(ConnectionResetError(errno.ECONNRESET, "of an environment"))


def test_from_the_shell(folder):
    process = start("train", "gym/toy:Blind-v0", "--steps", "10", "--processes")
    output, errors = process.communicate()
    assert (process.returncode, output) == (2, "")
    assert errors.startswith("error: 'gym/toy:Blind-v0' shows no pixels") and len(errors.splitlines()) == 1


def test_help_without_a_verb():
    process = start()
    output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert all(verb in output for verb in ("train", "evaluate", "bench", "tasks", "agents"))


def test_version(capsys):
    """The package's own, which is also that of its metadata."""
    assert main(["--version"]) == main(["-V"]) == 0
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"undistracted {declared}\n" * 2


def test_help_shows_the_defaults_of_the_preset(capsys):
    for preset, steps in (("paper", 500_000), ("small", PRESETS["small"]["steps"])):
        with pytest.raises(SystemExit) as end:
            main(["train", "--preset", preset, "--help"])
        assert end.value.code == 0
        assert f"(default: {steps})" in " ".join(capsys.readouterr().out.split())


def test_lists(capsys):
    assert main(["tasks"]) == main(["agents"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"dmc/walker-walk", "distracted/walker-walk", "scoreboard/walker-walk", "gym/<EnvId>"} <= set(lines)
    assert any(line.startswith("repo ") for line in lines)


@pytest.mark.parametrize("gpu", [False, True])
def test_compiled_code_is_kept_on_a_gpu(gpu, monkeypatch, tmp_path):
    import jax

    from undistracted.__main__ import keep_compiled

    chosen = {}
    monkeypatch.setattr("undistracted.presets.on_gpu", lambda: gpu)
    monkeypatch.setenv("UNDISTRACTED_CACHE", str(tmp_path))
    monkeypatch.setattr(jax.config, "update", chosen.__setitem__)
    keep_compiled()
    assert chosen == {}, "the tests have named a folder of their own, which stays"
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    keep_compiled()
    assert chosen == ({"jax_compilation_cache_dir": str(tmp_path / "compiled")} if gpu else {})
