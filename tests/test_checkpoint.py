"""A run that was stopped or killed goes on as if nothing had happened."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy import COUNTING, follow, start, wait_until

from undistracted import checkpoint, training
from undistracted.__main__ import main
from undistracted.config import Config
from undistracted.errors import UserError
from undistracted.learner import Learner
from undistracted.rollout import Environments
from undistracted.training import Trainer


def command(run, steps, *more):
    """Train with a ring of 60 rows, which goes round within 200 steps."""
    options = f"--preset debug --replay-size 120 --steps {steps}".split()
    return ["train", COUNTING, *options, "--run", str(run), *more]


def contents(run):
    """Everything in a run directory that the seed decides."""
    learner = Learner(Config.load_run(run), 6)
    counters = checkpoint.load(run, learner)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shown = EventAccumulator(str(run / "tensorboard")).Reload()
    names = [name for name in shown.Tags()["scalars"] if not name.endswith("wall_time")]
    return {
        "arrays": checkpoint.named(jax.device_get((learner.state, learner.replay))),
        "shown": {name: [(point.step, point.value) for point in shown.Scalars(name)] for name in names},
        "evaluations": (run / "eval.csv").read_text(),
        "metrics": [{name: line[name] for name in line if name != "wall_time"} for line in lines],
        "counters": {name: counters[name] for name in counters if name != "elapsed"},
    }


def assert_same(ours, theirs):
    ours, theirs = (jax.tree_util.tree_leaves_with_path(x) for x in (ours, theirs))
    for (name, our), (_, their) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(our, their, jax.tree_util.keystr(name))


def assert_rows_follow(run):
    """The replay of the newest checkpoint is experience without a gap."""
    learner = Learner(Config.load_run(run), 6)
    checkpoint.load(run, learner)
    written, capacity = int(learner.replay.written[0]), learner.replay.capacity
    order = np.arange(max(0, written - capacity), written) % capacity
    rows = jax.tree.map(lambda x: x[0, order], jax.device_get(learner.replay.rows))
    for env in range(rows.reward.shape[1]):
        column = jax.tree.map(lambda x, env=env: x[:, env], rows)
        begin = int(np.argmax(column.first))
        follow(jax.tree.map(lambda x, begin=begin: x[begin:], column))


@pytest.fixture(scope="module")
def continuous(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "continuous"
    assert main(command(run, 200)) == 0
    return contents(run)


def test_resumed_equals_continuous(tmp_path, continuous, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK", 16)  # several files a checkpoint
    assert main(command(tmp_path, 100)) == 0
    assert main(command(tmp_path, 200, "--resume")) == 0
    assert_same(contents(tmp_path), continuous)
    assert continuous["counters"]["rows"][0] > 0, "the ring went round"
    assert_rows_follow(tmp_path)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_asked_to_stop(tmp_path, number):
    process = start(*command(tmp_path, 10**6, "--processes"))
    wait_until(lambda: checkpoint.steps(tmp_path), process)
    os.killpg(process.pid, number)  # as terminals and clusters do it: to the environments too
    _, said = process.communicate()
    assert process.returncode == 0, said
    step = checkpoint.newest(tmp_path)
    assert "Traceback" not in said
    how = f"undistracted train --resume --run {tmp_path}"
    assert said.splitlines()[-1] == f"stopped at step {step:,} and saved; go on with {how}"
    assert main(command(tmp_path, step + 20, "--resume")) == 0
    assert step + 20 <= checkpoint.newest(tmp_path) <= step + 21
    assert_rows_follow(tmp_path)


def test_stopped_before_anything_is_learned(tmp_path, continuous, monkeypatch):
    with monkeypatch.context() as patch:
        send, sent = Environments.send, []

        def stop_at_the_tenth(self, action):
            sent.append(action)
            if len(sent) == 10:
                signal.raise_signal(signal.SIGTERM)
            send(self, action)

        patch.setattr(Environments, "send", stop_at_the_tenth)
        assert main(command(tmp_path, 200)) == 0
    assert len(sent) == 10 and not checkpoint.steps(tmp_path)
    assert main(command(tmp_path, 200)) == 0, "the same command begins anew"
    assert_same(contents(tmp_path), continuous)


def test_killed(tmp_path):
    process = start(*command(tmp_path, 10**6, "--processes"))
    wait_until(lambda: checkpoint.steps(tmp_path) and checkpoint.newest(tmp_path) >= 200, process)
    process.kill()
    process.communicate()
    wait_until(lambda: not group_exists(process.pid))
    step, folder = checkpoint.newest(tmp_path), tmp_path / "checkpoints"
    _, end = json.loads((folder / f"{step:09d}" / "counters.json").read_text())["rows"]
    shutil.rmtree(folder / ".partial", ignore_errors=True)  # as if it had died while writing the next checkpoint
    (folder / ".partial").mkdir()
    (folder / ".partial" / "state.safetensors").write_bytes(b"half")
    other = {name: x[:, :10].copy() for name, x in load_file(checkpoint.chunks(folder / "replay")[0][2]).items()}
    save_file(other, folder / "replay" / f"{end:09d}-{end + 10:09d}.safetensors")
    assert main(command(tmp_path, step + 50, "--resume")) == 0
    assert len(checkpoint.steps(tmp_path)) == 1 and step + 50 <= checkpoint.newest(tmp_path) <= step + 51
    assert_rows_follow(tmp_path)
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)), "what was logged after the checkpoint is forgotten"


def group_exists(group: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


def test_dead_environment(tmp_path, monkeypatch, capsys):
    log = Trainer._log

    def kill_one(self):
        self.collector.envs.workers.processes[1].kill()
        self.collector.envs.workers.processes[1].join()
        log(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_log", kill_one)
        assert main(command(tmp_path, 200, "--processes", "--checkpoint-every", "1000")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: an environment's process died") and "--resume" in error
    assert 50 <= checkpoint.newest(tmp_path) <= 52, "it is saved where it died"
    assert main(command(tmp_path, 120, "--resume")) == 0
    assert_rows_follow(tmp_path)


def test_a_run_that_cannot_begin_leaves_nothing_running(tmp_path, monkeypatch, capsys):
    def refused(*_):
        assert len(multiprocessing.active_children()) == 3, "two train, and one evaluates"
        raise UserError("the log is refused")

    monkeypatch.setattr(training, "Report", refused)
    assert main(command(tmp_path, 200, "--processes")) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "error: the log is refused"
    assert not multiprocessing.active_children()


def test_what_was_learned_is_kept_unless_it_has_diverged(tmp_path, monkeypatch, capsys):
    def hang_up(self):
        raise ConnectionResetError("the robot hung up")

    def diverge(self):
        self.learner.state = jax.tree.map(lambda x: x * np.nan if x.dtype == np.float32 else x, self.learner.state)

    with monkeypatch.context() as patch, pytest.raises(ConnectionResetError, match="hung up"):
        patch.setattr(Trainer, "_log", hang_up)
        main(command(tmp_path, 200, "--checkpoint-every", "1000"))
    step = checkpoint.newest(tmp_path)
    assert 50 <= step <= 52
    assert f"stopped at step {step} and saved; go on with undistracted train --resume" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_log", diverge)
        assert main(command(tmp_path, 200, "--resume")) == 2
    assert "not finite" in capsys.readouterr().err and checkpoint.newest(tmp_path) == step
    assert main(command(tmp_path, 120, "--resume")) == 0
    assert_rows_follow(tmp_path)


def test_what_has_diverged_replaces_no_checkpoint(tmp_path, monkeypatch, capsys):
    """Even where the policy still acts: it learns from the critic next."""
    save = Trainer.save

    def with_a_broken_critic(self):
        if self.step > 100:
            broken = jax.tree.map(lambda x: x * np.nan, self.learner.state.critic)
            self.learner.state = self.learner.state._replace(critic=broken)
        save(self)

    monkeypatch.setattr(Trainer, "save", with_a_broken_critic)
    assert main(command(tmp_path, 200)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: the policy or what it learns from is not finite") and "lower rates" in error
    assert checkpoint.newest(tmp_path) == 100
