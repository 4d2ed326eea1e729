"""The training loop: collect, learn, evaluate, log, checkpoint.

One pass of the loop is one step of every environment, those of an evaluation under way included. The device is given
the policy's steps and then the updates that are owed for the rows of the pass before, and while it works on them the
host steps the environments. So the policy that acts lacks these updates. With --sync it waits for them: strict
alternation, slower. Each update draws from the same rows either way, and nothing depends on timing: the same seed
gives the same run. Seeds go in lockstep, by the mean of their steps.
"""

import contextlib
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np

from undistracted import checkpoint
from undistracted.collector import Collector, clip_names, environments
from undistracted.config import Config
from undistracted.evaluation import Evaluation, splits_of, summarise
from undistracted.interrupt import Request, drive
from undistracted.learner import Learner, all_finite
from undistracted.logger import Terminal
from undistracted.report import Report
from undistracted.rollout import Diverged
from undistracted.rundir import claimed, open_directory, prepare

# What a checkpoint keeps of the loop.
COUNTERS = "taken", "count", "debt", "next_evaluation", "elapsed"


def train(config: Config) -> dict:
    """Train as configured; the summary of the final evaluation, e.g. `train(config)["test"]["return"]`."""
    return drive(partial(Trainer, prepare(config)))


class Trainer:
    verb = "train"

    def __init__(self, config: Config, request: Request | None = None):
        self.config, self.path, self.request = config, Path(config.run), request or Request()
        c = config
        clips = clip_names(c)
        with contextlib.ExitStack() as opened:  # closed where something fails before all is there
            opened.enter_context(claimed(self.path))
            envs = environments(c)
            opened.callback(envs.close)
            self.learner = self.make_learner(envs.action_size)
            self.collector = Collector(c, envs, self.learner)
            self.evaluation = Evaluation(c, self.learner)
            opened.callback(self.evaluation.close)
            self.taken = self.step = self.count = self.debt = 0  # steps of all seeds, of each; passes; updates owed
            self.next_evaluation, self.elapsed, self.results = 0, 0.0, None
            if c.resume:
                self._restore(checkpoint.load(self.path, self.learner))
            first = open_directory(c, clips, self.step, self.next_evaluation)
            self.terminal = Terminal(self._title(), c.steps)
            opened.callback(self.terminal.close)
            self.report = Report(c, self.terminal, first)
            opened.callback(self.report.close)
            self.opened = opened.pop_all()

    @property
    def stop(self) -> bool:
        return self.request.stop

    def make_learner(self, action_size: int) -> Learner:
        return Learner(self.config, action_size)

    def begin(self) -> None:
        """Put into the replay what learning begins with."""
        self.collector.prefill(self)
        self.debt += self.config.warm_up_updates

    def run(self) -> dict:
        c = self.config
        began = time.monotonic() - self.elapsed
        if not c.resume:
            self.begin()
        if self.learner.updates == 0 and self.stop:
            return self._stopped("before learning began; nothing to save")
        self.collector.new_episodes(0, self.step, self.count)
        self._evaluate_if_due()
        while self.step < c.steps and not self.stop:
            before = self.step
            self._advance()
            self.elapsed = time.monotonic() - began
            if self.step >= next_multiple(before, c.log_every):
                self._log()
            if self.step >= next_multiple(before, c.checkpoint_every) and self.step < c.steps:
                self._checkpoint()
                self.collector.new_episodes(0, self.step, self.count)
            self._evaluate_if_due()
        return self._finish()

    def _advance(self) -> None:
        """One pass: first all work for the device, which does not wait, then the environments."""
        evaluation = self.evaluation if self.evaluation.running else None
        action = self.collector.act(self.count)
        if evaluation:
            evaluation.act()
        if not self.config.sync:
            self._learn()
        self.collector.send(action)
        if evaluation:
            evaluation.send()
        self.collector.receive()
        self.debt += self.config.updates_per_step * self.collector.steps / self.config.seeds
        if self.config.sync:
            self._learn()
        if evaluation:
            self._report(evaluation.receive())
        self.taken += self.collector.steps
        self.step = self.taken // self.config.seeds
        self.count += 1

    def _learn(self) -> None:
        self.debt -= self.learner.update(self.debt)

    def _evaluate_if_due(self) -> None:
        """Start an evaluation, to be advanced in the passes that follow; the final policy's is run by `_finish`."""
        if self.step >= self.next_evaluation and self.step < self.config.steps:
            if self.evaluation.running:
                self._report(self.evaluation.finish())
            self.evaluation.start(self.step)
            self.next_evaluation = next_multiple(self.step, self.config.eval_every)

    def _report(self, results) -> None:
        """Tell an evaluation, once it is complete."""
        if results is not None:
            self.results = results
            self.report.evaluation(results, self.evaluation, self.step, self.elapsed)

    def _log(self) -> None:
        for seed, metrics in enumerate(self.metrics()):
            values = {"updates": self.learner.updates, "wall_time": round(self.elapsed, 2)} | metrics
            if self.collector.returns[seed]:
                values["return"] = float(np.mean(self.collector.returns[seed]))
            self.report.log.metrics(self.step, self.config.seed + seed, values)
        shown = {"return": f"{values['return']:.0f}"} if "return" in values else {}
        self.terminal.show(self.step, **shown, **self.watched(values))

    def metrics(self) -> list[dict]:
        """What to log, one dictionary a seed."""
        return self.learner.metrics()

    def watched(self, values: dict) -> dict[str, str]:
        """What the terminal's line shows of one seed's."""
        if "beta" in values:
            return {"KL": f"{values['kl']:.1f} ({self.config.epsilon:g})", "beta": f"{values['beta']:.2g}"}
        return {"KL": f"{values['kl']:.1f}"} if "kl" in values else {}

    def _checkpoint(self) -> None:
        if self.evaluation.running:
            self._report(self.evaluation.finish())
        self.save()

    def save(self) -> None:
        """Write a checkpoint; an evaluation under way is begun again on resume. What has diverged replaces nothing."""
        if not all_finite(self.learner.state):
            raise Diverged
        if self.evaluation.running:
            self.next_evaluation = self.evaluation.step
        counters = {name: getattr(self, name) for name in COUNTERS}
        counters |= {name: getattr(self.collector, name) for name in ("returns", "random_returns")}
        checkpoint.save(self.path, self.learner, self.step, counters, replay=self.config.save_replay)

    def rescue(self) -> None:
        """Keep what was learned, whatever ends the run: an environment that raises or dies, a device that fails."""
        if self.step:
            with contextlib.suppress(Exception):  # what ended the run is what its user must hear of
                self._save_and_stop()

    def _restore(self, counters: dict) -> None:
        self.step = counters["step"]
        for name in COUNTERS:
            setattr(self, name, counters[name])
        self.collector.returns, self.collector.random_returns = counters["returns"], counters["random_returns"]

    def _finish(self) -> dict:
        """Save, evaluate the final policy, show the table; who asked for an end does not wait for an evaluation."""
        if self.stop:
            return self._save_and_stop()
        self._checkpoint()
        self.evaluation.start(self.step)
        self._report(self.evaluation.finish())
        self.report.final(self.results, self.collector.random_returns, self.elapsed, self.learner.updates)
        return summarise(self.results)

    def _save_and_stop(self) -> dict:
        self.save()
        how = f"undistracted {self.verb} --resume --run {self.path}"
        return self._stopped(f"at step {self.step:,} and saved; go on with {how}")

    def _stopped(self, text: str) -> dict:
        self.terminal.close()
        self.terminal.say(f"stopped {text}")
        return {}

    def _title(self) -> str:
        c, device = self.config, jax.devices()[0].device_kind
        videos = f"videos {c.videos}   " if c.videos else "built-in moving pictures   "
        videos = videos if "test" in splits_of(c.task) else ""
        return f"{c.agent} on {c.task}   {videos}preset {c.preset}   {device}   {c.run}"

    def close(self) -> None:
        self.opened.close()


def next_multiple(step: int, every: int) -> int:
    """The first multiple of `every` after `step`."""
    return (step // every + 1) * every
