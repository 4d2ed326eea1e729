"""Adaptation's updates: what each variant's losses are and move, what is noticed, and the table of several runs."""

import csv
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from undistracted import checkpoint
from undistracted.adapt.adapt import Adaptation
from undistracted.adapt.agent import AdaptingAgent, Data, State, dynamics_violation
from undistracted.adapt.config import VARIANTS, flags, preset_adapt
from undistracted.adapt.results import ResultsConfig, results
from undistracted.adapt.source import relative_distance
from undistracted.rssm import balanced_kl


@pytest.fixture(scope="module")
def data(batch):
    """Pairs whose target side is the negative of the source's, encoded as the source once did."""
    frames = np.asarray(batch.obs).reshape(-1, 64, 64, 3)
    return lambda encoder: Data(encoder(frames), encoder(frames), jnp.asarray(255 - frames))


def adapting(agent, state, variant, **more):
    options = preset_adapt("runs/x", "distracted/walker-walk", hidden=16, code=4, **flags(variant) | more)
    wrapped = AdaptingAgent(agent, options)
    encoder = state.policy.model.encoder
    return wrapped, State(*state, wrapped.aligner.init(encoder, encoder.size, jax.random.key(1), **wrapped.sizes))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant, agent, state, batch, data, key):
    """Each has its own losses; nothing need be compiled to see which."""
    wrapped, before = adapting(agent, state, variant)
    row, pairs = VARIANTS[variant], data(state.policy.model.encoder)
    pairs = pairs if row.calibrated else pairs._replace(paired_source=None, paired_target=None)
    after, metrics = jax.eval_shape(wrapped.update, before, batch, key, pairs)
    losses = {"alignment": row.method != "none", "calibration": row.calibrated, "dynamics": row.dynamics_kl}
    assert {name: f"{name}_loss" in metrics for name in losses} == losses
    assert ("tau" in metrics) == (row.method == "support")
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, before)


def test_only_the_encoder_and_the_players_move(agent, state, batch, data, key):
    wrapped, before = adapting(agent, state, "calibrated-support", dynamics_kl=True)
    after, _ = jax.jit(wrapped.update)(before, batch, key, data(state.policy.model.encoder))
    before, after = (checkpoint.named(x) for x in (before, after))
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {name for name in before if name.startswith(".policy.model.encoder")} <= moved
    assert all(name.startswith((".policy.model.encoder", ".players")) for name in moved)


def test_a_step_draws_rows_alike_and_pairs_as_pairs(agent, state, batch, key):
    """As many of each kind as the batch has rows, each pair's two sides of one state."""
    drawn = []

    def step(encoder, players, rows, key, violation):
        drawn.append((rows, violation))
        return jax.tree.map(jnp.zeros_like, encoder), players, {}

    wrapped = AdaptingAgent(agent, preset_adapt("runs/x", "distracted/walker-walk"))
    wrapped.aligner = SimpleNamespace(step=step)
    number = np.arange(5)
    data = Data(jnp.float16(number[:, None]), jnp.float16(10 + number[:, None]), jnp.uint8(number[:, None, None, None]))
    for i in range(4):
        wrapped.dynamics_kl = bool(i % 2)
        before = State(*state, players="players")
        after, _ = wrapped.update(before, batch, jax.random.fold_in(key, i), data)
    assert not any(jax.tree.leaves(jax.tree.map(jnp.any, after.policy.model.encoder))), "the new encoder is taken"
    assert after.players == "players" and after.critic is state.critic and after.policy.actor is state.policy.actor
    assert [violation is not None for _, violation in drawn] == [False, True] * 2
    for rows, _ in drawn:
        assert rows.source.dtype == jnp.float32 and rows.source.shape == (*batch.first.shape, 1)
        assert rows.target is batch.obs
        np.testing.assert_array_equal(rows.paired_source[..., 0], 10 + rows.paired_target[..., 0, 0, 0])
    for side in ("source", "paired_target"):
        assert set(np.unique([getattr(rows, side) for rows, _ in drawn]).tolist()) == set(range(5)), "all are drawn"


def test_calibration_undoes_a_negative(agent, state, batch, data, key):
    wrapped, adapting_state = adapting(agent, state, "calibration", encoder_lr=3e-3)
    pairs, update = data(state.policy.model.encoder), jax.jit(wrapped.update)

    def distance(state):
        return relative_distance(pairs.paired_source, state.policy.model.encoder(pairs.paired_target))

    begin = distance(adapting_state)
    for i in range(150):
        adapting_state, _ = update(adapting_state, batch, jax.random.fold_in(key, i), pairs)
    assert distance(adapting_state) < 0.3 * begin


def test_relative_distance_is_one_for_the_mean():
    x = jnp.array([[0.0, 2.0], [4.0, 2.0]], jnp.float16)
    np.testing.assert_allclose(relative_distance(x, x), 0)
    np.testing.assert_allclose(relative_distance(x, jnp.broadcast_to(x.mean(0), x.shape)), 1)


def test_the_dynamics_violation_is_the_models_kl(agent, state, batch, key):
    """Its gradient is that of both sides, each of which a balanced KL has by half."""
    rssm = state.policy.model.rssm
    x = jax.random.normal(key, (*batch.first.shape, state.policy.model.encoder.size))

    def balanced(x):
        _, posterior, prior = rssm.observe(x, batch.action, batch.first, key)
        return balanced_kl(posterior, prior, 0.5).mean()

    violation, slope = jax.jit(jax.value_and_grad(lambda x: dynamics_violation(rssm, batch, key, x)))(x)
    expected, half = jax.jit(jax.value_and_grad(balanced))(x)
    np.testing.assert_allclose(violation, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, 2 * half, rtol=1e-3, atol=1e-4 * np.abs(half).max())


def test_presets():
    paper, official = (preset_adapt("a", "b", preset) for preset in ("paper", "official"))
    assert (paper.depth, paper.f_lr, paper.calibration_weight) == (2, 1e-4, 1)
    assert (official.depth, official.f_lr, official.calibration_weight) == (4, 3e-4, 1 / 1024)
    assert {flags_variant(name) for name in VARIANTS} == set(VARIANTS)


def flags_variant(name: str) -> str:
    return preset_adapt("a", "b", **flags(name)).variant


def test_a_collapse_is_noticed_once(capsys):
    adaptation = Adaptation.__new__(Adaptation)
    adaptation.held_out, adaptation.collapsed, adaptation.step, said = [], False, 500, []
    adaptation.config = SimpleNamespace(task="distracted/walker-walk")
    adaptation.terminal = SimpleNamespace(say=said.append)
    for target, warnings in ((0.5, 0), (0.005, 1), (0.005, 1)):
        row = {"target_spread": target, "source_spread": 1.0}
        adaptation.learner = SimpleNamespace(metrics=lambda row=row: [row])
        assert adaptation.metrics() == [row] and len(said) == warnings
    assert "collapsed" in said[0] and "--calibration" in said[0]


def test_results_of_several_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    returns = {0: (100, 90, 800), 50_000: (720, 640, 700)}  # train, test, clean
    for variant, share in (("calibrated-support", 1.0), ("ila", 0.5)):
        run = tmp_path / variant
        run.mkdir()
        preset_adapt("runs/x", "distracted/walker-walk", **flags(variant)).save(run)
        lines = ["step,seed,split,episode,return,length,success"]
        for step, by_split in returns.items():
            for split, value in zip(("train", "test", "clean"), by_split, strict=True):
                value = value if step == 0 else share * value
                lines += [f"{step},{seed},{split},{e},{value + e - 0.5},500," for seed in (0, 1) for e in (0, 1)]
        (run / "eval.csv").write_text("\n".join(lines) + "\n")
    results(ResultsConfig(["ila", "calibrated-support"]))
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"adaptation.csv", "adaptation.png"}
    table = list(csv.DictReader((tmp_path / "adaptation.csv").open()))
    assert list(table[0]) == ["task", "variant", "seed", "step", "split", "return"] and len(table) == 2 * 2 * 2 * 3
    assert [row["return"] for row in table if row["variant"] == "ila" and row["step"] == "50000"][-1] == "360.0"
    said = capsys.readouterr().err
    assert "clean 800 before" in said and "80% of clean" in said and "40% of clean" in said
    assert (tmp_path / "adaptation.png").stat().st_size > 10_000
