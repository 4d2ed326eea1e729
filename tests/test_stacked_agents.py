"""The agents that see stacks of frames, through learner, replay, environments and checkpoints; and they learn."""

import dataclasses

import jax
import numpy as np
import pytest
from test_checkpoint import assert_same, contents
from test_learner import ACTION_SIZE, assert_close, experience, trained
from test_rollout import collect, columns
from toy import COUNTING, STEADY, follow, read

import undistracted
from undistracted.__main__ import main
from undistracted.agents import make_agent
from undistracted.agents.settings import TDMPC
from undistracted.data import Batch
from undistracted.errors import UserError
from undistracted.learner import Learner
from undistracted.presets import complete, preset_config
from undistracted.replay import stack
from undistracted.seeds import Seeds

each_agent = pytest.mark.parametrize("agent", ["dbc", "tdmpc"])


@pytest.fixture(scope="module")
def alone(tiny):
    """Seed 1 of each agent after three updates."""
    return {agent: trained(tiny(agent=agent, seed=1)) for agent in ("dbc", "tdmpc")}


def assert_learned_alike(learner, metrics, alone, seed=0):
    expected, values = alone
    for name, value in values[0].items():
        assert metrics[seed][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    ours = jax.tree.map(lambda x: x[seed : seed + 1], (learner.state.policy, learner.replay.priority))
    assert_close(ours, (expected.state.policy, expected.replay.priority), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("agent, devices", [("dbc", 1), ("tdmpc", 1), ("tdmpc", 2)])
def test_a_seed_among_others_learns_and_acts_as_it_does_alone(tiny, alone, agent, devices):
    learner, metrics = trained(tiny(agent=agent, seed=0, seeds=2), devices=devices)
    assert learner.seeds.share == 2 // devices
    assert_learned_alike(learner, metrics, alone[agent], seed=1)
    row = experience([5] * 2, 2)[0]
    actions, _ = learner.act(learner.initial_carry(2), row, 3)
    single = alone[agent][0]
    action, _ = single.act(single.initial_carry(2), jax.tree.map(lambda x: x[1:2], row), 3)
    np.testing.assert_allclose(actions[1], action[0], atol=1e-3)


def test_fused_block_is_the_updates_one_by_one(tiny, alone, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # where the learner fuses a block of updates
    schedule = dataclasses.replace(tiny(agent="tdmpc").tdmpc, schedule=100 * 0.05 / 1.5)  # in updates, as long
    fused, metrics = trained(tiny(agent="tdmpc", seed=1, updates_per_step=1.5, tdmpc=schedule))
    assert fused.block == 3
    assert_learned_alike(fused, metrics, alone["tdmpc"])


@each_agent
def test_replay_on_the_host_learns_alike(tiny, alone, monkeypatch, agent):
    """Priorities are drawn there and come back from the device that learns."""
    monkeypatch.setattr("undistracted.learner.replay_home", lambda shapes, seeds: Seeds(1, jax.devices()[1:2]))
    learner, metrics = trained(tiny(agent=agent, seed=1))
    assert {leaf.device for leaf in jax.tree.leaves(learner.replay)} == {jax.devices()[1]}
    assert_learned_alike(learner, metrics, alone[agent])


def test_only_agents_that_ask_for_priorities_have_them(alone):
    priority = np.asarray(alone["tdmpc"][0].replay.priority)
    assert alone["dbc"][0].replay.priority is None
    assert len(np.unique(priority)) > 3, "0 where there is no window, 1 for a new one, and what updates have found"


def expected_stack(facts, t: int) -> list:
    return [facts[max(t - n, t - facts[t].t)] for n in (2, 1, 0)]


def test_stacks_are_the_last_frames_of_the_episode_from_environment_to_update(tmp_path):
    """What the policy saw last, and what an update would see, of an environment that writes facts into pictures."""
    trainer = collect(tmp_path, agent="dbc", checkpoint_every=1000)
    facts = [follow(column) for column in columns(trainer)[0]]

    def shown(stacked):
        return [read(stacked[..., 3 * i : 3 * i + 3]) for i in range(3)]

    for env, column in enumerate(facts):
        assert shown(np.asarray(trainer.collector.carry[0, env])) == expected_stack(column, len(column) - 2)
    learner = trainer.learner
    sample = jax.jit(lambda replay, key: stack(learner.agent.sample(replay, key), 3))
    replay, starts = jax.tree.map(lambda x: x[0], learner.replay), set()
    for key in jax.random.split(jax.random.key(0), 40):
        batch = jax.tree.map(np.asarray, sample(replay, key))
        for i in range(batch.reward.shape[1]):
            before, after = shown(batch.obs[0, i]), shown(batch.obs[1, i])
            (column, t) = next((c, c.index(after[-1])) for c in facts if after[-1] in c)
            assert before == expected_stack(column, t - 1) and after == expected_stack(column, t)
            assert after[-1].t == before[-1].t + 1 and after[-1].reward == batch.reward[1, i]
            starts.add(before[-1].t)
    assert {0, 1, 2} <= starts, "from an episode's first rows too"


@pytest.mark.parametrize("agent", [pytest.param("dbc", marks=pytest.mark.slow), "tdmpc"])
def test_resumed_equals_continuous(tmp_path, agent):
    """And the run can be evaluated and deployed."""

    def command(run, steps, *more):
        """Of the learner that `alone` has compiled; its ring goes round."""
        options = f"--agent {agent} --preset debug --warm-up-updates 3 --steps {steps}"
        alike = "--replay-size 64 --model-lr 3e-3 --beta-lr 1e-2"
        task = COUNTING if agent == "dbc" else STEADY
        return ["train", task, *options.split(), *alike.split(), "--run", str(run), *more]

    assert main(command(tmp_path / "whole", 200)) == 0
    assert main(command(tmp_path / "parts", 100)) == 0
    assert main(command(tmp_path / "parts", 200, "--resume")) == 0
    ours, whole = contents(tmp_path / "parts"), contents(tmp_path / "whole")
    assert_same(ours, whole)
    assert any("priority" in name for name in whole["arrays"]) == (agent == "tdmpc")
    assert whole["metrics"][-1]["updates"] in (12, 13), "three at once, then one in twenty steps"
    assert main(["evaluate", str(tmp_path / "whole"), "--episodes", "2", "--json"]) == 0
    deployed = undistracted.load(tmp_path / "whole")
    frames = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), np.uint8)
    actions, carry = [], None
    for frame in frames:
        action, carry = deployed.act(frame, carry)
        actions.append(action)
    assert np.shape(actions) == (3, 6) and np.abs(actions).max() <= 1


@pytest.mark.parametrize("preset", ["paper", "original", "small", "debug"])
@pytest.mark.parametrize("agent", ["deepmdp", "dbc", "tdmpc"])
def test_every_preset_has_an_agent(agent, preset):
    config = complete(preset_config("dmc/walker-walk", preset, agent))
    state = jax.eval_shape(make_agent(config, 6).init, jax.random.key(0))
    features = {"paper": (20_000, 128), "original": (20_000, 128), "small": (648, 64), "debug": (2500, 16)}
    convs = state.policy.model.encoder.convs if agent == "tdmpc" else state.policy.convs
    assert convs.size == features[preset][agent == "tdmpc"]
    assert {"paper": 1.0, "original": 1.0, "small": 0.5, "debug": 0.05}[preset] == config.updates_per_step
    if agent == "dbc":
        assert len(state.auxiliary.transition.members) == (5 if preset == "original" else 1)


@pytest.mark.parametrize(
    ("agent", "settings", "words"),
    [
        ("repo", dict(horizon=1), "--horizon 2 or more"),
        ("repo", dict(channels=(4,) * 5), "--shrink 1 and 5 convolutions .* leave nothing of a picture"),
        ("repo", dict(shrink=3), "--shrink must divide 64"),
        ("repo", dict(channels=()), "at least one convolution"),
        ("dbc", dict(channels=(4,) * 5), "at most 4"),
        ("dbc", dict(shrink=32), "leave nothing of a picture"),
        ("tdmpc", dict(tdmpc=TDMPC(samples=8, proposals=2, elites=11)), "11 are more than 8 samples and 2 proposals"),
    ],
)
def test_settings_that_fit_no_agent_are_told(tiny, agent, settings, words):
    with pytest.raises(UserError, match=words):
        jax.eval_shape(make_agent(tiny(agent=agent, **settings), ACTION_SIZE).init, jax.random.key(0))


def test_published_settings_by_domain(monkeypatch):
    """Told by the task of the command line too, whose own flags count for more."""
    trained = []
    monkeypatch.setattr("undistracted.training.train", trained.append)
    for task, latent, rounds, batch in (
        ("humanoid-walk", 100, 12, 256),
        ("dog-run", 100, 8, 7),
        ("cup-catch", 50, 6, 256),
    ):
        given = ["--batch", "7"] if batch == 7 else []
        assert main(["train", f"dmc/{task}", "--agent", "tdmpc", "--preset", "original", *given]) == 0
        config = trained.pop()
        assert (config.tdmpc.latent, config.tdmpc.rounds, config.batch) == (latent, rounds, batch)
    assert preset_config("dmc/dog-run", "original", "tdmpc").batch == 2048
    assert preset_config("dmc/dog-run", "paper", "tdmpc").batch == 256


def bar(x) -> np.ndarray:
    """Pictures of a bright bar at x, from -1 to 1."""
    bright = np.abs(np.arange(64) - (32 + 28 * x[..., None])) < 6
    return np.broadcast_to(np.uint8(200) * bright[..., None, :, None], (*x.shape, 64, 64, 3))


@pytest.mark.slow  # the ladder, which all agents climb, asks nearly the same
@pytest.mark.parametrize("agent", ["deepmdp", "dbc", "tdmpc"])
def test_learns_from_pictures_of_the_past_to_move_a_bar_to_the_middle(tiny, optimised, agent):
    """The first part of an action moves the bar, which pays the nearer it is to the middle: from -0.8 the best action
    is 0.8, and the other way round. All it learns from are random actions."""
    rates = dict(model_lr=3e-3, actor_lr=3e-3, critic_lr=3e-3)
    config = tiny(agent=agent, replay_size=256, batch=16, hidden=32, gamma=0.5, channels=(8, 8), shrink=4, **rates)
    learner, rng, x = Learner(config, ACTION_SIZE), np.random.default_rng(0), np.zeros((1, config.envs))
    for t in range(128):
        first = np.full(x.shape, t % 16 == 0)
        action = rng.uniform(-1, 1, (*x.shape, ACTION_SIZE)).astype(np.float32) * ~first[..., None]
        x = np.where(first, rng.uniform(-1, 1, x.shape), np.clip(x + action[..., 0], -1, 1))
        learner.add(Batch(bar(x), action, np.where(first, 0, 1 - np.abs(x)).astype(np.float32), first))
    learner.update(500)
    assert all(np.isfinite(value) for value in learner.metrics()[0].values())
    row = Batch(bar(np.array([[-0.8, 0.8]])), np.zeros((1, 2, ACTION_SIZE)), np.zeros((1, 2)), np.ones((1, 2), bool))
    action, _ = learner.act(learner.initial_carry(2), row, 0, learner.policy_copy())
    np.testing.assert_allclose(action[0, :, 0], [0.8, -0.8], atol=0.3)
