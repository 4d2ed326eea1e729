"""A disk that is full costs no checkpoint, and a replay of which files were lost is not taken for a whole one."""

import contextlib
import errno
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_checkpoint import assert_same
from toy import COUNTING

from undistracted import checkpoint
from undistracted.data import Batch
from undistracted.errors import UserError
from undistracted.learner import Learner
from undistracted.presets import complete, preset_config
from undistracted.rollout import Environments


def raise_full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@contextlib.contextmanager
def real_limit(patch):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def full_from_the_start(patch):
    patch.setattr(checkpoint, "save_file", raise_full)
    yield


@contextlib.contextmanager
def full_at_the_end(patch):
    patch.setattr(checkpoint.json, "dumps", raise_full)
    yield


@pytest.mark.parametrize("full", [real_limit, full_from_the_start, full_at_the_end])
def test_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch, full):
    config = complete(preset_config(COUNTING, "debug", replay_size=40, run=str(tmp_path)))
    learner, envs = Learner(config, 6), Environments([config.env("train")] * 2, processes=False)
    for row in [envs.reset([1, 2]), *(step(envs) for _ in range(29))]:
        learner.add(jax.tree.map(lambda x: x[None], row))
    checkpoint.save(tmp_path, learner, 100, {}, replay=True)
    saved = jax.device_get((learner.state, learner.replay))
    learner.state = jax.tree.map(lambda x: x + 1, learner.state)
    for row in [step(envs) for _ in range(25)]:
        learner.add(jax.tree.map(lambda x: x[None], row))
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"cannot write a checkpoint"), full(patch):
        checkpoint.save(tmp_path, learner, 200, {}, replay=True)
    again = Learner(config, 6)
    assert checkpoint.load(tmp_path, again)["step"] == 100
    assert_same(jax.device_get((again.state, again.replay)), saved)
    checkpoint.save(tmp_path, learner, 300, {}, replay=True)
    checkpoint.load(tmp_path, again := Learner(config, 6))
    assert_same(jax.device_get((again.state, again.replay)), jax.device_get((learner.state, learner.replay)))


def test_a_replay_that_is_not_whole_is_told(tmp_path, monkeypatch):
    """Whether one file is lost between others, the last one, or all of them."""
    monkeypatch.setattr(checkpoint, "CHUNK", 8)
    run, config = tmp_path / "whole", complete(preset_config(COUNTING, "debug", replay_size=80))
    learner, envs = Learner(config, 6), Environments([config.env("train")] * 2, processes=False)
    empty = jax.tree.map(jnp.copy, learner.replay)
    for row in [envs.reset([1, 2]), *(step(envs) for _ in range(29))]:
        learner.add(jax.tree.map(lambda x: x[None], row))
    checkpoint.save(run, learner, 100, {}, replay=True)

    def load(run):
        learner.replay = jax.tree.map(jnp.copy, empty)
        checkpoint.load(run, learner)

    load(run)
    for lost in (slice(1, 2), slice(-1, None), slice(None)):
        shutil.copytree(run, other := tmp_path / f"without {lost}")
        files = [path for *_, path in checkpoint.chunks(other / "checkpoints" / "replay")]
        assert len(files) > 2
        for path in files[lost]:
            path.unlink()
        with pytest.raises(UserError, match="files are missing"):
            load(other)


def step(envs) -> Batch:
    envs.send(np.zeros((2, 6)))
    return envs.receive()[0]
