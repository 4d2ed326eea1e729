"""What an adaptation begins with: its settings, encodings of the source by the source's encoder, and pairs in order."""

import dataclasses
import json
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from toy import STEADY, read

from undistracted import rundir
from undistracted.adapt import adapt, pairs, source
from undistracted.adapt.agent import AdaptingAgent
from undistracted.adapt.config import AdaptConfig, preset_adapt
from undistracted.config import Config
from undistracted.data import Batch
from undistracted.errors import UserError
from undistracted.interrupt import Request
from undistracted.presets import complete, preset_config
from undistracted.seeds import Seeds

TASK = "distracted/walker-walk"


def saved_run(path, task="dmc/walker-walk", **settings):
    """The settings of a run and a checkpoint's counters: all that preparing looks at."""
    (path / "checkpoints" / "000000040").mkdir(parents=True)
    (path / "checkpoints" / "000000040" / "counters.json").write_text(json.dumps({"rows": [0, 6]}))
    complete(preset_config(task, "debug", **settings)).save(path / "config.json")
    return str(path)


def test_the_new_look_is_set_and_all_else_is_the_sources(tmp_path):
    run = saved_run(tmp_path / "run", seed=3, seeds=2, belief=17, render="faithful", warm_up_updates=9)
    options, config = adapt.prepare(preset_adapt(run, TASK, videos="clips", color=True, steps=70, replay_size=900))
    assert options.run == config.run == f"{run}-distracted-calibrated-support"
    kept = Config.load_run(tmp_path / "run")
    changed = {name for name in vars(kept) if getattr(kept, name) != getattr(config, name)}
    own = {"task", "videos", "color", "steps", "run", "replay_size", "warm_up_updates"}
    assert changed == own | {"eval_every", "log_every", "checkpoint_every", "updates_per_step"}
    assert (config.task, config.videos, config.color, config.steps) == (TASK, "clips", True, 70)
    assert (config.render, config.replay_size, config.warm_up_updates) == ("faithful", 900, 0)
    assert adapt.prepare(preset_adapt(run, TASK))[1].replay_size == 1000, "no more than the source's"
    one = adapt.prepare(preset_adapt(run, TASK, envs=1, prefill=30, updates_per_step=0.5))[1]
    assert (one.envs, one.prefill, one.updates_per_step, config.updates_per_step) == (1, 30, 0.5, 0.2)
    dataclasses.replace(options, resume=True).save(tmp_path)
    assert AdaptConfig.load_run(tmp_path) == options
    (tmp_path / "adapt.json").write_text('{"gone": 1}')
    with pytest.raises(UserError, match="does not hold this version's settings"):
        AdaptConfig.load_run(tmp_path)


def test_what_cannot_be_adapted_or_resumed(tmp_path):
    stacked = saved_run(tmp_path / "stacked", agent="tdmpc")
    with pytest.raises(UserError, match="run of tdmpc, which has no encoder apart"):
        adapt.prepare(preset_adapt(stacked, TASK))
    adapted = tmp_path / "adapted"
    saved_run(adapted)
    preset_adapt("runs/a", TASK, run=str(adapted)).save(adapted)
    with pytest.raises(UserError, match="holds an adaptation; go on with undistracted adapt runs/a"):
        rundir.prepare(preset_config("dmc/walker-walk", "debug", run=str(adapted), resume=True))
    with pytest.raises(UserError, match="nosuch is not an adapted run"):
        adapt.prepare(preset_adapt("runs/a", TASK, run=str(tmp_path / "nosuch"), resume=True))
    for run, task in (("runs/b", TASK), ("runs/a", "scoreboard/walker-walk")):
        with pytest.raises(UserError, match=f"an adaptation of runs/a to {TASK}"):
            adapt.prepare(preset_adapt(run, task, run=str(adapted), resume=True))


def test_every_setting_reaches_its_player(monkeypatch):
    monkeypatch.setattr("undistracted.adapt.agent.Aligner", lambda *args, **more: SimpleNamespace(args=args, **more))
    numbers = dict(encoder_lr=1.0, tau_lr=2.0, f_lr=3.0, lambda_lr=4.0, alignment_weight=5.0, calibration_weight=6.0)
    numbers |= dict(dynamics_weight=7.0, penalty=8.0, budget=9.0, hidden=10, depth=11, code=12)
    agent = SimpleNamespace(act=1, initial_carry=2, action_size=3, sample=4, pictures=5)
    wrapped = AdaptingAgent(agent, preset_adapt("runs/x", TASK, **numbers))
    (_, rates), game = wrapped.aligner.args, vars(wrapped.aligner)
    assert rates._asdict() == dict(encoder=1.0, tau=2.0, f=3.0, multiplier=4.0)
    assert {name: game[name] for name in ("alignment", "calibration", "dynamics", "penalty", "budget")} == dict(
        alignment=5.0, calibration=6.0, dynamics=7.0, penalty=8.0, budget=9.0
    )
    assert wrapped.sizes == dict(hidden=10, depth=11, code=12)


class Bright(eqx.Module):
    """Encodes a picture as its first numbers, times a gain."""

    gain: jnp.ndarray

    def __call__(self, obs):
        return obs[..., 0, 0, :].astype(jnp.float32) * self.gain


def test_frames_are_encoded_in_slabs_by_each_seeds_own_encoder(monkeypatch):
    monkeypatch.setattr(source, "SLAB", 3)
    policy = SimpleNamespace(model=SimpleNamespace(encoder=Bright(jnp.array([1.0, 2.0]))))
    encode = source.FrozenEncoder(SimpleNamespace(policy_copy=lambda: policy, seeds=Seeds(2)))
    frames = np.arange(2 * 7 * 3, dtype=np.uint8).reshape(2, 7, 1, 1, 3)
    policy.model.encoder = None  # it keeps its own
    got = encode(frames)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, frames[:, :, 0, 0] * np.array([1, 2])[:, None, None])


def test_the_sources_replay_is_encoded_up_to_its_checkpoint(tmp_path):
    run = tmp_path / "run"
    saved_run(run)
    frames = np.arange(9 * 2, dtype=np.uint8).reshape(1, 9, 2, 1, 1, 1)  # (S, K, E, ...)
    (run / "checkpoints" / "replay").mkdir()
    for start, stop in ((0, 4), (4, 6), (6, 9)):  # the last of a checkpoint that was never completed
        file = run / "checkpoints" / "replay" / f"{start:09d}-{stop:09d}.safetensors"
        save_file({"obs": np.ascontiguousarray(frames[:, start:stop])}, file)
    got = source.source_encodings(run, None, None, lambda x: x[..., 0, 0], 0)
    np.testing.assert_array_equal(got[0, :, 0], np.arange(12))
    save_file({"source": np.full((1, 2, 1), 7, np.float16)}, run / source.FILE)
    assert source.source_encodings(run, None, None, None, 0).tolist() == [[[7], [7]]], "an adapted run hands on its own"


def test_collected_frames_are_whole_episodes_of_each_seed(tiny, monkeypatch):
    monkeypatch.setattr(source, "SLAB", 8)
    config = tiny(STEADY, envs=2, seeds=2, seed=4)
    counts = []

    def act(carry, row, count):
        counts.append(count)
        return np.zeros((2, 2, 6), np.float32), carry

    learner = SimpleNamespace(initial_carry=lambda n: None, act=act)
    frames = source.collected(config, learner, lambda frames: frames, 27)
    assert frames.shape[:2] == (2, 28) and counts == list(range(14)), "fresh noise at each step"
    for seed in frames:
        for env in (seed[::2], seed[1::2]):
            facts = [read(frame) for frame in env]
            assert [fact.t for fact in facts] == [*range(6)] * 2 + [0, 1]
            assert len({fact.seed for fact in facts}) == 1
    assert len({read(frame).seed for frame in frames[:, :2].reshape(4, 64, 64, 3)}) == 4


def trajectory(number: int, length: int) -> Batch:
    """Rows whose pictures tell the trajectory's number, in the source's look, and 100 more in the target's."""
    obs = np.concatenate([np.full((length, 1, 1, 3), number + look, np.uint8) for look in (0, 100)], -1)
    return Batch(obs, np.zeros((length, 6)), np.zeros(length), np.arange(length) == 0)


def test_pairs_are_gathered_encoded_and_kept_apart(tmp_path, monkeypatch):
    """Two trajectories for calibration, one for measuring; the target's side is what the replay begins with."""
    each = [[trajectory(n, 2) for n in (1, 2, 3)], [trajectory(n, 3) for n in (4, 5, 6)]]
    monkeypatch.setattr(pairs, "drive_pairs", lambda *_: each)
    monkeypatch.setattr(adapt, "source_encodings", lambda *_: np.zeros((2, 1, 3), np.float16))
    monkeypatch.setattr(adapt, "FrozenEncoder", lambda learner, _: lambda frames: frames[:, :, 0, 0] / learner)
    saved_run(tmp_path / "source")
    adaptation = adapt.Adaptation.__new__(adapt.Adaptation)
    adaptation.options = preset_adapt("runs/x", TASK, calibration=2, held_out=1)
    adaptation.config, adaptation.path, adaptation.request = SimpleNamespace(), tmp_path / "run", Request()
    adaptation._gather(tmp_path / "source", 1)
    kept = {name: x.reshape(2, -1, 3)[..., 0].tolist() for name, x in load_file(tmp_path / "run" / source.FILE).items()}
    assert kept["paired_source"] == [[1, 1, 2, 2], [4, 4, 4, 5]], "as many of each seed as the shortest has"
    assert kept["paired_target"] == [[101, 101, 102, 102], [104, 104, 104, 105]]
    assert (kept["held_out_source"], kept["held_out_target"]) == ([[3, 3], [6, 6]], [[103, 103], [106, 106]])
    assert adaptation.rows.obs[..., 0, 0, 0].tolist() == kept["paired_target"]


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(adapt, "gather_pairs", lambda *_: pairs.Gathered(None, None, None))
    monkeypatch.setattr(adapt, "source_encodings", lambda *_: np.zeros((1, 1, 3), np.float16))
    monkeypatch.setattr(adapt, "FrozenEncoder", lambda *_: None)
    saved_run(tmp_path / "source")
    (tmp_path / "run" / source.FILE).mkdir(parents=True)  # nobody can write to a folder
    adaptation = adapt.Adaptation.__new__(adapt.Adaptation)
    adaptation.request = Request()
    adaptation.options, adaptation.config, adaptation.path = preset_adapt("runs/x", TASK), None, tmp_path / "run"
    with pytest.raises(UserError, match="cannot write .*adaptation.safetensors"):
        adaptation._gather(tmp_path / "source", None)
