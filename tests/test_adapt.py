"""Adaptation through the command line: what it moves and what it leaves, what it writes, how it goes on."""

import csv
import json
import shutil
import signal

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from toy import COUNTING, STEADY

from undistracted import checkpoint
from undistracted.__main__ import main
from undistracted.adapt.config import AdaptConfig
from undistracted.adapt.source import FILE
from undistracted.config import Config
from undistracted.film import write_film
from undistracted.rollout import Environments

SCHEDULE = ["--steps", "60", "--eval-every", "60", "--log-every", "30", "--calibration", "2", "--held-out", "1"]
DEBUG = ["--preset", "debug", "--steps", "40", "--eval-every", "1000", "--seed", "3"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A walker before a clean background, 20 steps an episode, hardly trained."""
    run = tmp_path_factory.mktemp("runs") / "source"
    assert main(["train", "dmc/walker-walk", *DEBUG, "--action-repeat", "50", "--shift", "2", "--run", str(run)]) == 0
    return run


@pytest.fixture(scope="module")
def adapted(source):
    run, videos, noise = source.parent / "adapted", source.parent / "videos", np.random.default_rng(0)
    for name in "abc":
        write_film(videos / f"{name}.mp4", {"": list(noise.integers(0, 256, (20, 16, 16, 3), np.uint8))})
    options = [*SCHEDULE, "--videos", str(videos), "--run", str(run)]
    assert main(["adapt", str(source), "--task", "distracted/walker-walk", *options]) == 0
    return run


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """Two seeds of a source that needs no renderer."""
    run = tmp_path_factory.mktemp("runs") / "counting"
    assert main(["train", STEADY, *DEBUG, "--seeds", "2", "--run", str(run)]) == 0
    return run


def arrays(run):
    return load_file(run / "checkpoints" / f"{checkpoint.newest(run):09d}" / "state.safetensors")


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_only_the_encoder_moves(source, adapted):
    before, after = arrays(source), arrays(adapted)
    assert before.keys() == {name for name in after if not name.startswith(".players")}
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == {name for name in before if name.startswith(".policy.model.encoder")} != set()


def test_what_an_adapted_run_holds(source, adapted):
    config, options = Config.load_run(adapted), AdaptConfig.load_run(adapted)
    assert (config.task, config.steps, config.seed, config.action_repeat) == ("distracted/walker-walk", 60, 3, 50)
    assert (Config.load_run(source).shift, config.shift) == (2, 0), "pictures are moved for learning, not to align them"
    assert (options.source, options.variant) == (str(source), "calibrated-support")
    rows = list(csv.DictReader((adapted / "eval.csv").open()))
    assert [(row["step"], row["split"]) for row in rows] == [
        (step, split) for step in ("0", "60") for split in ("train", "test", "clean")
    ]
    assert {path.name for path in (adapted / "videos").iterdir()} == {"000000000.mp4", "000000060.mp4"}
    assert set(json.loads((adapted / "videos.json").read_text())) == {"train", "test"}


def test_health_is_logged(adapted):
    first, *lines = metrics(adapted)
    assert first["step"] == 0 and first["held_out_distance"] > 0, "before anything has moved"
    health = {"tau", "lambda", "f_kl", "held_out_distance", "target_spread", "source_spread", "calibration_loss"}
    assert [line["step"] for line in lines] == [30, 60]
    assert all(health <= line.keys() and np.isfinite(list(line.values())).all() for line in lines)
    assert "return" in lines[-1] and lines[-1]["updates"] in (11, 12), "100 per 500 steps, whatever the source's"
    assert first["held_out_distance"] != lines[-1]["held_out_distance"], "by the encoder as it is by now"


def test_the_data_of_an_adaptation(source, adapted):
    kept, config = load_file(adapted / FILE), Config.load_run(source)
    begin, end = checkpoint.counters_of(source)["rows"]
    assert kept["source"].dtype == np.float16 and kept["source"].shape[:2] == (1, (end - begin) * config.envs)
    assert kept["paired_target"].shape == (1, 2 * 21, 64, 64, 3), "two trajectories with their last rows"
    assert kept["held_out_source"].shape[:2] == (1, 21)
    rows = np.concatenate([load_file(path)["obs"] for *_, path in checkpoint.chunks(source / "checkpoints/replay")], 1)
    learner, _ = checkpoint.load_learner(source, config)
    encoder = jax.tree.map(lambda x: x[0], learner.state.policy.model.encoder)
    expected = encoder(rows[0].reshape(-1, 64, 64, 3)[:7])
    np.testing.assert_allclose(kept["source"][0, :7], expected, rtol=1e-3, atol=1e-6)
    first = load_file(checkpoint.chunks(adapted / "checkpoints/replay")[0][2])["obs"]
    np.testing.assert_array_equal(first[0, :21, 0], kept["paired_target"][0, :21], "the replay begins with the pairs")


def test_it_is_a_run_like_any_other(adapted, tmp_path, capsys):
    film = tmp_path / "film.mp4"
    assert main(["evaluate", str(adapted), "--episodes", "1", "--video", str(film), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "distracted/walker-walk" and film.exists()
    again = tmp_path / "again"
    assert main(["adapt", str(adapted), "--task", "scoreboard/walker-walk", *SCHEDULE, "--run", str(again)]) == 0
    assert "before adapting: train" in capsys.readouterr().err
    before, after = arrays(adapted), arrays(again)
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert all(name.startswith((".policy.model.encoder", ".players")) for name in moved)
    assert any(name.startswith(".policy.model.encoder") for name in moved)
    np.testing.assert_array_equal(load_file(adapted / FILE)["source"], load_file(again / FILE)["source"])
    pairs = load_file(again / FILE)["paired_target"][0]
    assert (pairs[5, :14, :5] != load_file(adapted / FILE)["paired_target"][0, 5, :14, :5]).any(), "a scoreboard"


def adapt(source, run, *more):
    return main(["adapt", str(source), "--task", STEADY, *SCHEDULE, "--run", str(run), *map(str, more)])


def test_pairs_recorded_elsewhere_and_resumed_equals_continuous(counting, tmp_path):
    rng = np.random.default_rng(0)
    names = {name: rng.integers(0, 256, (10, 64, 64, 3), np.uint8) for name in ("source", "target")}
    np.savez(tmp_path / "pairs.npz", **names)
    runs = whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--checkpoint-every", 40, "--log-every", 20, "--calibration", 0, "--pairs", tmp_path / "pairs.npz"]
    assert adapt(counting, whole, *options, "--steps", 80) == 0
    kept = load_file(whole / FILE)
    np.testing.assert_array_equal(kept["paired_target"][1], names["target"][:8])
    assert AdaptConfig.load_run(whole).variant == "calibrated-support" and kept["held_out_target"].shape[1] == 2
    assert all(np.isfinite(line["held_out_distance"]) for line in metrics(whole)), "a part of a spread that is not zero"

    assert adapt(counting, parts, *options, "--steps", 40) == 0
    assert main(["adapt", str(counting), "--steps", "80", "--run", str(parts), "--resume"]) == 0, "its task is known"
    ours, theirs = (arrays(run) for run in runs)
    assert ours.keys() == theirs.keys() and len([name for name in ours if ".players" in name]) > 10
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], name)
    ours, theirs = ([{k: v for k, v in m.items() if k != "wall_time"} for m in metrics(run)] for run in runs)
    assert ours == theirs and len(ours) == 10


def test_a_source_without_replay_and_seeds_that_adapt_by_themselves(counting, tmp_path, capsys):
    source, run = tmp_path / "source", tmp_path / "run"
    shutil.copytree(counting, source)
    shutil.rmtree(source / "checkpoints" / "replay")
    path = source / "checkpoints" / f"{checkpoint.newest(source):09d}" / "counters.json"
    ila = ["--method", "distribution", "--calibration", 0, "--dynamics-kl"]
    for rows in ([0, 20], None):  # its files were removed, or never written
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rows": rows}))
        assert adapt(source, run, *ila) == 2
        assert "--collect-source 50000" in capsys.readouterr().err.splitlines()[-1]
    assert adapt(source, run, *ila, "--collect-source", 31) == 0
    assert load_file(run / FILE)["source"].shape[:2] == (2, 32), "two environments a seed"
    assert AdaptConfig.load_run(run).variant == "ila"
    lines = metrics(run)[-2:]
    assert [line["seed"] for line in lines] == [3, 4]
    assert lines[0]["alignment_loss"] != lines[1]["alignment_loss"]
    assert all("dynamics_loss" in line and "calibration_loss" not in line and "tau" not in line for line in lines)
    assert json.loads((run / "checkpoints/000000060/counters.json").read_text())["random_returns"], "random episodes"


def test_an_end_asked_for_while_pairs_are_gathered_comes_between_two_steps(counting, tmp_path, monkeypatch, capsys):
    send, sent = Environments.send, []

    def stop_at_the_third(self, action):
        if len(sent) == 2:
            signal.raise_signal(signal.SIGINT)
        sent.append(send(self, action))

    monkeypatch.setattr(Environments, "send", stop_at_the_third)
    assert adapt(counting, tmp_path / "run") == 130
    assert len(sent) == 3 and not checkpoint.steps(tmp_path / "run") and "Traceback" not in capsys.readouterr().err


MISTAKES = {
    "no run": (["nosuchrun"], "nosuchrun is not a run directory"),
    "task": (["SOURCE", "--task", "distracted/walker-wlak"], "did you mean 'distracted/walker-walk'"),
    "nothing": (["SOURCE", "--method", "none", "--calibration", "0"], "nothing to adapt by"),
    "negative": (["SOURCE", "--calibration", "-1"], "--calibration is -1"),
    "schedule": (["SOURCE", "--log-every", "0"], "--log-every is 0"),
    "depth": (["SOURCE", "--depth", "0"], "--depth is 0"),
    "replay": (["SOURCE", "--replay-size", "10"], "use --replay-size 16 or more"),
    "prefill": (["SOURCE", "--envs", "20"], "use --prefill 160 or more"),
    "method": (["SOURCE", "--method", "magic"], "magic"),
    "preset": (["SOURCE", "--preset", "mine"], "choose one of paper, official, debug"),
    "body": (["SOURCE", "--task", "distracted/cartpole-swingup"], "takes 1 actions, the agent of"),
    "apart": (["SOURCE", "--task", COUNTING], "--calibration 0 --held-out 0"),
    "file": (["SOURCE", "--pairs", "nosuchfile.npz"], "cannot read pairs from 'nosuchfile.npz'"),
    "occupied": (["SOURCE", "--run", "SOURCE"], "already holds a run"),
    "resume": (["SOURCE", "--resume", "--run", "nosuchrun"], "is not an adapted run"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, counting, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments, words = MISTAKES[name]
    arguments = [str(counting) if word == "SOURCE" else word for word in arguments]
    task = [] if "--task" in arguments else ["--task", STEADY]
    assert main(["adapt", *arguments, *task]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and words in line
    assert not [path for path in (*tmp_path.iterdir(), *counting.parent.iterdir()) if path != counting], "no new folder"
