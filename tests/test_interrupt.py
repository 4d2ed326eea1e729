"""Ctrl-C: a request at first, then the end."""

import subprocess
import sys
from functools import partial

import pytest
from test_checkpoint import command

from undistracted import checkpoint
from undistracted.__main__ import main
from undistracted.config import Config
from undistracted.evaluation import Evaluation
from undistracted.interrupt import drive
from undistracted.learner import Learner
from undistracted.training import Trainer
from undistracted.workers import DeadEnvironment

TWICE = """
import signal, time
from undistracted import interrupt
interrupt.ONE_PRESS = {1}
with interrupt.asked_to_stop() as request:
    signal.raise_signal(signal.{0})
    print("asked", request.stop, flush=True)
    time.sleep(0.01)
    signal.raise_signal(signal.{0})
    print("still here", flush=True)
"""


@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_second_one_ends_the_process_at_once(name, code):
    """Not by an exception, which may come in the midst of JAX."""
    assert run(name, one_press=0) == (code, "asked True\n", "")


def test_two_signals_for_one_press_are_one():
    """As of `timeout -s INT`, which tells the process and its group."""
    assert run("SIGINT", one_press=60) == (0, "asked True\nstill here\n", "")


def run(name, one_press):
    ended = subprocess.run([sys.executable, "-c", TWICE.format(name, one_press)], capture_output=True, text=True)
    return ended.returncode, ended.stdout, ended.stderr


def test_who_asked_for_an_end_does_not_wait_for_an_evaluation(tmp_path, monkeypatch):
    """An episode on a robot may take minutes. The evaluation is begun again on resume."""
    advance = Trainer._advance

    def stop_while_it_runs(self):
        advance(self)
        if self.step > 100 and self.evaluation.running:
            self.request.stop = True

    def finish(self):
        raise AssertionError("waited")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_advance", stop_while_it_runs)
        assert main(command(tmp_path, 100)) == 0
        patch.setattr(Evaluation, "finish", finish)
        assert main(command(tmp_path, 200, "--resume")) == 0
    step = checkpoint.newest(tmp_path)
    assert 100 < step < 200
    assert checkpoint.load(tmp_path, Learner(Config.load_run(tmp_path), 6))["next_evaluation"] == 100


def test_an_environment_that_ctrl_c_ended_while_it_was_made_is_no_mistake():
    """It is told to leave Ctrl-C alone only once it runs."""

    def make(request, asked):
        request.stop = asked
        raise DeadEnvironment

    with pytest.raises(KeyboardInterrupt):
        drive(partial(make, asked=True))
    with pytest.raises(DeadEnvironment):
        drive(partial(make, asked=False))
