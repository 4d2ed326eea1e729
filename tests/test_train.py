"""A whole training run through the command line: what it writes, and that its settings decide all of it."""

import csv
import dataclasses
import json
from types import SimpleNamespace

import av
import numpy as np
import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy import STEADY

from undistracted import checkpoint
from undistracted.__main__ import main
from undistracted.config import Config
from undistracted.film import write_film
from undistracted.training import Trainer, train

REPEAT, EPISODE = 25, 40  # an episode is 1000 frames
OPTIONS = f"--preset debug --steps 120 --eval-every 60 --checkpoint-every 100 --seed 3 --action-repeat {REPEAT}".split()


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder, noise = tmp_path_factory.mktemp("videos"), np.random.default_rng(0)
    for name in "abcde":
        write_film(folder / f"{name}.mp4", {"": list(noise.integers(0, 256, (20, 16, 16, 3), np.uint8))})
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory, videos):
    run = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "distracted/walker-walk", *OPTIONS, "--run", str(run), "--videos", str(videos)]) == 0
    return run


def metrics(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line.pop("wall_time") > 0 for line in lines)
    return lines


def parameters(run):
    return load_file(run / "checkpoints" / f"{checkpoint.newest(run):09d}" / "state.safetensors")


def test_evaluations(run):
    text = (run / "eval.csv").read_text()
    assert text.splitlines()[0] == "step,seed,split,episode,return,length,success"
    rows = list(csv.DictReader(text.splitlines()))
    expected = [(str(step), "3", split, "0") for step in (0, 60, 120) for split in ("train", "test", "clean")]
    assert [(row["step"], row["seed"], row["split"], row["episode"]) for row in rows] == expected
    assert {(row["length"], row["success"]) for row in rows} == {(str(EPISODE), "")}
    returns = [float(row["return"]) for row in rows]
    assert min(returns) > 0 and max(returns) < 1000 and len(set(returns)) > 3


def test_metrics(run):
    lines = metrics(run)
    assert [(line["step"], line["seed"]) for line in lines] == [(50, 3), (100, 3)]
    assert lines[-1]["updates"] in (4, 5), "one update in 20 steps; the last one may still be owed"
    assert all(np.isfinite(value) for line in lines for value in line.values())
    assert {"kl", "beta", "reward_loss", "actor_loss", "critic_loss", "return"} <= lines[-1].keys()
    counters = json.loads((run / "checkpoints" / "000000120" / "counters.json").read_text())
    assert counters["updates"] in (5, 6) and counters["step"] == 120
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["000000120", "replay"]


def test_films(run):
    assert sorted(path.name for path in (run / "videos").iterdir()) == [f"{s:09d}.mp4" for s in (0, 60, 120)]
    with av.open(str(run / "videos" / "000000120.mp4")) as film:
        frames = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
    assert len(frames) == EPISODE
    train, test, clean = np.split(np.stack(frames).astype(int), 3, axis=2)
    assert train.shape[1:] == (256, 256, 3)
    blue = [np.percentile(part[..., 2] - part[..., 0], 80) for part in (train, test, clean)]
    assert blue[2] > 25 > max(blue[:2]), "gray films behind the first two, a blue sky in the third"


def test_videos_are_recorded_by_split(run, videos):
    used = json.loads((run / "videos.json").read_text())
    assert set(used) == {"train", "test"} and used["train"] and used["test"]
    assert sorted(used["train"] + used["test"]) == sorted(path.name for path in videos.iterdir())


def test_tensorboard(run):
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    losses = {event.step: event.value for event in events.Scalars("seed3/reward_loss")}
    assert losses == pytest.approx({line["step"]: line["reward_loss"] for line in metrics(run)}, rel=1e-5)
    assert [event.step for event in events.Scalars("seed3/eval/test")] == [0, 60, 120]


def test_settings_are_complete(run, tmp_path):
    config = Config.load_run(run)
    assert json.loads((run / "config.json").read_text()).keys() == {f.name for f in dataclasses.fields(Config)}
    assert (config.task, config.steps, config.seed, config.batch) == ("distracted/walker-walk", 120, 3, 4)
    assert None not in (config.beta0, config.epsilon, config.r, config.native_conv)
    assert "auto" not in (config.preset, config.precision)
    summary = train(dataclasses.replace(config, run=str(tmp_path)))
    assert metrics(tmp_path) == metrics(run)
    assert (tmp_path / "eval.csv").read_text() == (run / "eval.csv").read_text()
    ours, theirs = parameters(run), parameters(tmp_path)
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)
    last = [row.split(",") for row in (run / "eval.csv").read_text().splitlines()[-3:]]
    assert {split: s["return"] for split, s in summary.items()} == pytest.approx(
        {row[2]: float(row[4]) for row in last}, abs=1e-3
    )


def test_seeds_side_by_side(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", STEADY, *OPTIONS, "--seeds", "2", "--action-repeat", "1", "--run", str(run)]) == 0
    rows = list(csv.DictReader((run / "eval.csv").open()))
    assert [(row["step"], row["seed"]) for row in rows] == [(s, seed) for s in ("0", "60", "120") for seed in "34"]
    lines = metrics(run)
    assert [(line["step"], line["seed"], line["updates"]) for line in lines] == [
        (step, seed, updates) for step, updates in ((50, 2), (100, 4)) for seed in (3, 4)
    ]
    assert lines[2]["reward_loss"] != lines[3]["reward_loss"]
    assert all(len(values) == 2 and not np.array_equal(*values)
               for name, values in parameters(run).items() if "encoder" in name)  # fmt: skip
    said = capsys.readouterr().err
    assert "random policy" in said and "minutes without set-up and last evaluation, 5 updates; film: " in said


@pytest.mark.parametrize("sync", [False, True])
def test_learning_goes_on_beside_the_environments_or_with_sync_after_them(tiny, sync):
    calls = []

    def record(name, result=None):
        return lambda *_: (calls.append(name), result)[1]

    trainer = Trainer.__new__(Trainer)
    trainer.config, trainer.evaluation = tiny(sync=sync), SimpleNamespace(running=False)
    trainer.learner = SimpleNamespace(update=record("learn", 0))
    methods = {name: record(name) for name in ("act", "send")}

    def receive():
        calls.append("receive")
        trainer.collector.steps = 2

    trainer.collector = SimpleNamespace(steps=0, receive=receive, **methods)  # at first rows of episodes
    trainer.taken = trainer.count = trainer.debt = 0
    trainer._advance()
    assert calls == (["act", "send", "receive", "learn"] if sync else ["act", "learn", "send", "receive"])
    assert trainer.debt == 2 * trainer.config.updates_per_step, "a checkpoint made now holds all that is owed"
