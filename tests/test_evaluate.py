"""Evaluating a trained run: which splits, how many episodes, and the same numbers every time."""

import dataclasses
import json

import av
import numpy as np
import pytest
from toy import COUNTING, Counting, Fact, read

from undistracted.__main__ import main
from undistracted.checkpoint import load_learner
from undistracted.config import Config
from undistracted.deploy import load
from undistracted.errors import UserError
from undistracted.evaluation import EvaluateConfig, Evaluation, evaluate
from undistracted.film import write_film

EPISODE = 40


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder, noise = tmp_path_factory.mktemp("videos"), np.random.default_rng(0)
    for name in "ab":
        write_film(folder / f"{name}.mp4", {"": list(noise.integers(0, 256, (20, 16, 16, 3), np.uint8))})
    return folder


def trained(run, task, *more):
    """A run that has only just begun."""
    options = ["--preset", "debug", "--steps", "10", "--eval-every", "10", "--updates-per-step", "0", "--run", str(run)]
    assert main(["train", task, *options, *more]) == 0
    return run


@pytest.fixture(scope="module")
def walker(tmp_path_factory, videos):
    run = tmp_path_factory.mktemp("runs") / "walker"
    return trained(run, "distracted/walker-walk", "--videos", str(videos), "--action-repeat", "25")


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "counting", COUNTING)


def printed(capsys, run, *options):
    capsys.readouterr()
    assert main(["evaluate", str(run), "--json", *options]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_splits(walker, capsys):
    both = {split: printed(capsys, walker, "--split", split, "--episodes", "1") for split in ("test", "clean")}
    every = printed(capsys, walker, "--split", "all", "--episodes", "1")
    assert (every["run"], every["task"], every["step"]) == (str(walker), "distracted/walker-walk", 10)
    assert list(every["splits"]) == ["train", "test", "clean"]
    assert [list(result["splits"]) for result in both.values()] == [["test"], ["clean"]]
    for result in (every, *both.values()):
        assert {split: [s["return"]] for split, s in result["splits"].items()} == result["returns"]
    assert len({tuple(returns) for returns in every["returns"].values()}) == 3
    for split, result in both.items():  # the same episodes, asked for alone or with the others
        assert result["returns"][split] == pytest.approx(every["returns"][split], rel=1e-3)


def test_the_same_numbers_every_time(walker, capsys):
    first, second = (printed(capsys, walker, "--episodes", "2") for _ in range(2))
    assert first == second
    assert len(set(first["returns"]["test"])) == 2 and list(first["returns"]) == ["test"]


def test_film(walker, tmp_path, capsys):
    file = tmp_path / "new" / "film.mp4"
    summary = evaluate(EvaluateConfig(str(walker), split="all", episodes=1, video=str(file)))
    assert set(summary) == {"train", "test", "clean"}
    with av.open(str(file)) as film:
        shapes = [frame.to_ndarray(format="rgb24").shape for frame in film.decode(video=0)]
    assert shapes == [(256, 3 * 256, 3)] * EPISODE
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"film: {file}\n")


def test_another_task(walker, capsys):
    result = printed(capsys, walker, "--task", "dmc/walker-run", "--episodes", "1")
    assert result["task"] == "dmc/walker-run" and list(result["splits"]) == ["clean"]
    with pytest.raises(UserError, match=r"'dmc/cartpole-swingup' takes 1 actions, the run's agent has 6"):
        evaluate(EvaluateConfig(str(walker), task="dmc/cartpole-swingup", episodes=1))
    with pytest.raises(UserError, match="did you mean 'dmc/walker-walk'"):
        evaluate(EvaluateConfig(str(walker), task="dmc/walker-wlak"))


@pytest.mark.parametrize("envs, episodes", [(1, 5), (3, 7), (8, 2)])
def test_every_environment_plays_its_share(counting, envs, episodes):
    config = dataclasses.replace(Config.load_run(counting), eval_envs=envs, eval_episodes=episodes)
    evaluation = Evaluation(config, load_learner(counting, config)[0])
    try:
        evaluation.start(step=10)
        seeds = [read(frame).seed for frame in evaluation.row.obs]
        results = evaluation.finish()
    finally:
        evaluation.close()
    assert len(set(seeds)) == len(seeds) == min(envs, episodes)
    starts = [Fact(seeds[i % len(seeds)], i // len(seeds), 0) for i in range(episodes)]  # in turn, short ones or long
    lengths = [Counting.length_of(start) for start in starts]
    told = [None if start.episode % 2 else float(length >= 5) for start, length in zip(starts, lengths, strict=True)]
    assert [(r.step, r.seed, r.split, r.episode) for r in results] == [(10, 0, "clean", i) for i in range(episodes)]
    assert [r.length for r in results] == lengths and [r.success for r in results] == told
    film = [read(frame) for frame in evaluation.frames["clean"]]
    assert [fact[:3] for fact in film] == [(seeds[0], 0, t) for t in range(lengths[0])]
    agent, carry = load(counting), None
    for frame, fact in zip(evaluation.frames["clean"], film[1:], strict=False):
        action, carry = agent.act(frame, carry)
        np.testing.assert_allclose(fact.action, action, atol=1e-5)  # the means, without noise


def test_success(counting, capsys):
    result = printed(capsys, counting, "--split", "all", "--episodes", "1")
    summary = result["splits"]["clean"]
    assert summary["episodes"] == 1 and summary["success"] in (0.0, 1.0)
    many = printed(capsys, counting, "--split", "all", "--episodes", "3")
    assert "success" not in many["splits"]["clean"], "odd episodes tell nothing"
    assert len(many["returns"]["clean"]) == 3
