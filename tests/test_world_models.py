"""What holds for every agent that learns in imagination: seeds, runs that go on, pictures, deployment, speed."""

import json

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_checkpoint import assert_same, contents
from test_learner import assert_close, experience, trained
from toy import STEADY

import undistracted
from undistracted.__main__ import main
from undistracted.agents import AGENTS, make_agent
from undistracted.agents.latent import LatentAgent
from undistracted.data import Batch
from undistracted.presets import PRESETS, complete, preset_config

BASELINES = ["dreamer", "tia", "denoised-mdp"]


@pytest.mark.parametrize("agent", BASELINES)
def test_a_seed_among_others_learns_what_it_learns_alone(tiny, agent):
    """Three updates of two seeds at once; the decoders, seed by seed inside of them, too."""
    alone, expected = trained(tiny(agent=agent, seed=1))
    together, metrics = trained(tiny(agent=agent, seed=0, seeds=2))
    assert together.seeds.share == 2
    for name, value in expected[0].items():
        assert np.isfinite(value)
        assert metrics[1][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    second = jax.tree.map(lambda x: x[1:2], together.state.policy)
    assert_close(second, alone.state.policy, rtol=1e-3, atol=1e-4)
    assert metrics[0]["reward_loss"] != pytest.approx(metrics[1]["reward_loss"], rel=1e-3)
    row = experience([5] * 2, 2)[0]
    actions, _ = together.act(together.initial_carry(2), row, 3)
    action, _ = alone.act(alone.initial_carry(2), jax.tree.map(lambda x: x[1:2], row), 3)
    np.testing.assert_allclose(actions[1], action[0], atol=1e-3)
    assert alone._block._cache_size() == together._block._cache_size() == 1


@pytest.fixture(scope="module", params=BASELINES)
def runs(request, tmp_path_factory):
    """A run through the command line, and the same run stopped half way and resumed."""
    folder = tmp_path_factory.mktemp("runs")

    def train(run, steps, *more):
        options = f"--agent {request.param} --preset debug --eval-every 40 --checkpoint-every 40 --log-every 20".split()
        assert main(["train", STEADY, *options, "--steps", str(steps), "--run", str(run), *more]) == 0

    train(folder / "whole", 80)
    train(folder / "parts", 40)
    train(folder / "parts", 80, "--resume")
    return request.param, folder


def test_resumed_run_is_the_whole_one(runs):
    _, folder = runs
    whole, parts = contents(folder / "whole"), contents(folder / "parts")
    for name in ("arrays", "metrics", "counters"):
        assert_same(whole[name], parts[name])
    assert any("decoder" in name for name in whole["arrays"])


def test_run_shows_what_its_model_makes_of_an_episode(runs):
    _, folder = runs
    names = {path.name for path in (folder / "whole" / "videos").iterdir()}
    assert {f"{step:09d}{kind}" for step in (0, 40, 80) for kind in (".mp4", "-model.mp4", "-model.png")} == names
    events = EventAccumulator(str(folder / "whole" / "tensorboard"), size_guidance={"images": 0}).Reload()
    assert [event.step for event in events.Images("model")] == [0, 40, 80]
    lines = [json.loads(line) for line in (folder / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert {"image_loss", "reward_loss", "kl", "kl_loss"} <= lines[-1].keys()


def test_trained_agent_is_evaluated_and_deployed(runs, capsys):
    agent, folder = runs
    assert main(["evaluate", str(folder / "whole"), "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 80
    deployed, carry = undistracted.load(folder / "whole"), None
    frames = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), np.uint8)
    actions = []
    for frame in frames:
        action, carry = deployed.act(frame, carry)
        actions.append(action)
    assert np.shape(actions) == (4, 6) and np.abs(actions).max() <= 1
    assert np.abs(deployed.act(frames[-1])[0] - actions[-1]).max() > 1e-6, "it remembers"


@pytest.mark.parametrize("agent", BASELINES)
def test_bench(agent, capsys):
    assert main(["bench", "--agent", agent, "--preset", "debug", "--updates", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["agent"], result["preset"]) == (agent, "debug") and result["update_ms"] > 0


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("agent", ["repo", *BASELINES])
def test_every_preset_makes_every_agent(agent, preset):
    """Parameters, moments, an update and an action have shapes that fit, at full size and without computing any."""
    config = complete(preset_config("distracted/walker-walk", preset, agent))
    made = make_agent(config, 6)
    assert isinstance(made, LatentAgent) and agent in AGENTS
    key = jax.random.key(0)
    state = jax.eval_shape(made.init, key)
    batch = jax.eval_shape(lambda: Batch.zeros((config.length, config.batch), 6))
    after, metrics = jax.eval_shape(made.update, state, batch, key)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [x.shape for x in jax.tree.leaves(after)] == [x.shape for x in jax.tree.leaves(state)]
    assert all(value.shape == () for value in metrics.values())
