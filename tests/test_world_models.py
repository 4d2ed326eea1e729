"""What holds for every agent that learns in imagination: seeds, runs that go on, pictures, deployment, speed."""

import json

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_dreamer import SIZES
from test_learner import assert_close, trained
from toy import STEADY

import undistracted
from undistracted import checkpoint
from undistracted.__main__ import main
from undistracted.agents import make_agent
from undistracted.agents.latent import LatentAgent
from undistracted.data import Batch
from undistracted.presets import complete, preset_config

# The first is the others' simplest case, and climbs the ladder with them.
BASELINES = [pytest.param("dreamer", marks=pytest.mark.slow), "tia", "denoised-mdp"]


OPTIONS = SIZES | dict(free_nats=0.0)  # so that every parameter is learned


@pytest.fixture(scope="module", params=BASELINES)
def agent(request):
    return request.param


@pytest.fixture(scope="module")
def alone(tiny, agent):
    """Seed 1 after three updates."""
    return trained(tiny(agent=agent, seed=1, **OPTIONS))


def test_a_seed_among_others_learns_what_it_learns_alone(tiny, agent, alone):
    """Three updates of two seeds at once; the decoders, seed by seed inside of them, too."""
    alone, expected = alone
    together, metrics = trained(tiny(agent=agent, seed=0, seeds=2, **OPTIONS))
    assert together.seeds.share == 2
    for name, value in expected[0].items():
        assert np.isfinite(value)
        assert metrics[1][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    second = jax.tree.map(lambda x: x[1:2], together.state.policy)
    assert_close(second, alone.state.policy, rtol=1e-3, atol=1e-4)
    assert metrics[0]["reward_loss"] != pytest.approx(metrics[1]["reward_loss"], rel=1e-3)
    assert alone._block._cache_size() == together._block._cache_size() == 1


def test_checkpoint_holds_all_that_learning_changes(alone, tmp_path):
    """The next update from a checkpoint is the one that would have come without it."""
    learner, _ = alone
    checkpoint.save(tmp_path, learner, 3, {}, replay=False)
    before = jax.tree.map(np.array, learner.state)
    learner.update(1)
    after, learner.updates = jax.tree.map(np.array, learner.state), 0
    checkpoint.load_state(tmp_path, learner)
    assert_close(learner.state, before, rtol=0)
    learner.update(1)
    assert_close(learner.state, after, rtol=0)
    assert all((a != b).any() for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True))


@pytest.fixture(scope="module")
def run(agent, tmp_path_factory):
    """A run through the command line, of the learner that `alone` has compiled."""
    run = tmp_path_factory.mktemp("runs") / "run"
    options = f"--agent {agent} --preset debug --steps 60 --eval-every 40 --log-every 20 --replay-size 64"
    alike = "--channels 4 8 --shrink 4 --free-nats 0 --model-lr 3e-3 --beta-lr 1e-2"
    assert main(["train", STEADY, *options.split(), *alike.split(), "--run", str(run)]) == 0
    return run


def test_run_shows_what_its_model_makes_of_an_episode(run):
    names = {path.name for path in (run / "videos").iterdir()}
    assert names == {f"{step:09d}{kind}" for step in (0, 40, 60) for kind in (".mp4", "-model.mp4", "-model.png")}
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0}).Reload()
    assert {event.step for event in events.Images("model")} == {0, 40, 60}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [20, 40, 60]
    assert {"image_loss", "reward_loss", "kl", "kl_loss"} <= lines[-1].keys()


def test_trained_agent_is_evaluated_and_deployed(run, capsys):
    assert main(["evaluate", str(run), "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 60
    deployed, carry, actions = undistracted.load(run), None, []
    frames = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), np.uint8)
    for frame in frames:
        action, carry = deployed.act(frame, carry)
        actions.append(action)
    assert np.shape(actions) == (4, 6) and np.abs(actions).max() <= 1
    assert np.abs(deployed.act(frames[-1])[0] - actions[-1]).max() > 1e-6, "it remembers"


@pytest.mark.parametrize("preset", ["original", "small"])
@pytest.mark.parametrize("name", ["repo", *BASELINES])
def test_every_preset_makes_every_agent(name, preset):
    """Parameters, moments, an update and an action have shapes that fit, at full size and without computing any."""
    config = complete(preset_config("distracted/walker-walk", preset, name, unroll=1))
    made = make_agent(config, 6)
    assert isinstance(made, LatentAgent)
    key = jax.random.key(0)
    state = jax.eval_shape(made.init, key)
    batch = jax.eval_shape(lambda: Batch.zeros((config.length, config.batch), 6))
    after, metrics = jax.eval_shape(made.update, state, batch, key)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [x.shape for x in jax.tree.leaves(after)] == [x.shape for x in jax.tree.leaves(state)]
    assert all(value.shape == () for value in metrics.values())
