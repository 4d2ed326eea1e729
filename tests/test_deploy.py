"""A trained agent used elsewhere acts as it did in training, and its files cannot run code."""

import importlib
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from toy import STEADY

import undistracted
from undistracted.checkpoint import load_learner
from undistracted.config import Config
from undistracted.data import Batch
from undistracted.errors import UserError

SEED, STEPS = 2, 6


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    config = undistracted.preset_config(STEADY, "debug", steps=60, seed=SEED, seeds=2, run=str(run))
    undistracted.train(config)
    return run


@pytest.fixture(scope="module")
def agent(run):
    return undistracted.load(run)


@pytest.fixture(scope="module")
def frames():
    return np.random.default_rng(0).integers(0, 256, (STEPS, 3, 64, 64, 3), np.uint8)


def play(agent, frames, **options):
    actions, carry = [], None
    for frame in frames:
        action, carry = agent.act(frame, carry, **options)
        actions.append(action)
    return np.stack(actions)


def test_one_picture_or_many(agent, frames):
    many, one, single = play(agent, frames), play(agent, frames[:, 1:2]), play(agent, frames[:, 1])
    assert many.shape == (STEPS, 3, 6) and many.dtype == np.float32 and np.abs(many).max() <= 1
    assert single.shape == (STEPS, 6) and one.shape == (STEPS, 1, 6)
    np.testing.assert_array_equal(one[:, 0], single)
    np.testing.assert_allclose(many[:, 1], single, atol=1e-5)


def test_remembers_within_an_episode(agent, frames):
    _, carry = agent.act(frames[0])
    fresh, _ = agent.act(frames[1])
    remembered, _ = agent.act(frames[1], carry)
    assert np.abs(fresh - remembered).max() > 1e-6
    np.testing.assert_array_equal(play(agent, frames), play(agent, frames))


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_acts_as_the_learner_does(run, frames, seed):
    learner, _ = load_learner(run, Config.load_run(run))
    carry, expected = learner.initial_carry(3), []
    for i, frame in enumerate(frames):
        obs, first = np.stack([frame, frame]), np.full((2, 3), i == 0)
        row = Batch(obs, np.zeros((2, 3, 6), np.float32), np.zeros((2, 3), np.float32), first)
        action, carry = learner.act(carry, row, 0, learner.policy_copy())
        expected.append(action[seed - SEED])
    actions = play(undistracted.load(run, seed=seed), frames)
    np.testing.assert_allclose(actions, np.stack(expected), atol=1e-5)
    assert np.abs(actions - np.stack(play(undistracted.load(run, seed=5 - seed), frames))).max() > 1e-3


@pytest.mark.parametrize("seed", [SEED - 1, SEED + 2])
def test_a_seed_that_was_not_trained(run, seed):
    with pytest.raises(UserError, match=f"no seed {seed}"):
        undistracted.load(run, seed=seed)


def test_samples(agent, frames):
    first, second = play(agent, frames, sample=True), play(agent, frames, sample=True)
    assert np.abs(first - second).max() > 0.1 and np.abs(first).max() <= 1


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((64, 64, 3), np.float32),
        np.zeros((32, 64, 3), np.uint8),
        np.zeros((3, 64, 64), np.uint8),
        np.zeros((64, 64), np.uint8),
        np.zeros((2, 2, 64, 64, 3), np.uint8),
    ],
)
def test_wrong_pictures(agent, picture):
    with pytest.raises(ValueError, match="expected uint8 pictures of shape"):
        agent.act(picture)


def test_functions_of_the_package():
    importlib.import_module("undistracted.training")  # a module of a function's name does not take its place
    for name in ("make_env", "train", "evaluate", "load", "preset_config"):
        assert getattr(undistracted, name).__name__ == name and callable(getattr(undistracted, name))


def test_files_hold_arrays_and_numbers_only(run, monkeypatch):
    monkeypatch.setattr("pickle.loads", lambda *_, **__: pytest.fail("unpickled"))
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("unpickled"))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("np.load"))
    undistracted.load(run)
    files = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    for path in files:
        content = json.loads(path.read_text()) if path.suffix == ".json" else load_file(path)
        assert content and all(isinstance(leaf, np.ndarray | int | float) for leaf in jax.tree.leaves(content))
