"""The training loop: collect, learn, evaluate, log, checkpoint.

One pass of the loop is one step of every environment, those of an evaluation under way included. The device is given
the policy's steps and then the updates that are owed, and while it works on them the host steps the environments. So
the policy that acts is at most one pass older than the newest parameters, and the updates sample what was there before
the pass. Nothing depends on timing: the same seed gives the same run.
"""

import dataclasses
import json
import shutil
import signal
import time
from pathlib import Path

import jax
import numpy as np

from undistracted import checkpoint
from undistracted.config import Config, complete
from undistracted.data import Batch
from undistracted.envs import clips_of
from undistracted.errors import UserError
from undistracted.evaluate import Evaluation, splits_of, summarise
from undistracted.film import write_film
from undistracted.learner import Learner
from undistracted.logger import RunLog, Terminal, drop_later, result_table
from undistracted.rollout import DeadEnvironment, Environments

# What a checkpoint keeps of the loop.
COUNTERS = "taken", "count", "returns", "debt", "next_evaluation", "random_returns", "elapsed"


def train(config: Config) -> dict:
    """Train as configured; the summary of the final evaluation, e.g. `train(config)["test"]["return"]`."""
    config = prepare(config)
    trainer = Trainer(config)
    with stopping_signals(trainer):
        try:
            return trainer.run()
        except DeadEnvironment:
            if trainer.step:
                trainer.save()
            raise
        finally:
            trainer.close()


def prepare(config: Config) -> Config:
    """The complete settings; on --resume those of the run, of which only the number of steps may change."""
    run = config.run_dir
    if config.resume:
        checkpoint.newest(run)
        saved = Config.load_run(run)
        if (saved.task, saved.agent, saved.seed) != (config.task, config.agent, config.seed):
            raise UserError(
                f"{run} holds {saved.agent} on {saved.task} with seed {saved.seed}; name the same to resume it, "
                "or another --run"
            )
        return dataclasses.replace(saved, steps=config.steps, run=str(run), resume=True)
    if checkpoint.steps(run):
        raise UserError(f"{run} already holds a run; continue it with --resume, or name another with --run")
    return complete(dataclasses.replace(config, run=str(run)))


class Trainer:
    def __init__(self, config: Config):
        self.config, self.path = config, Path(config.run)
        c = config
        record_videos(c)
        self.envs = Environments([c.env("train", seed) for seed in range(c.seeds) for _ in range(c.envs)], c.processes)
        self.evaluation = None
        self.learner = Learner(c, self.envs.action_size)
        self.evaluation = Evaluation(c, self.learner)
        self.stop = False
        self.taken = self.step = self.count = self.debt = 0  # steps of all seeds, of each; passes; updates owed
        self.next_evaluation = 0
        self.random_returns, self.returns, self.elapsed = [], [], 0.0
        self.results = None
        if c.resume:
            self._restore(checkpoint.load(self.path, self.learner))
        self.path.mkdir(parents=True, exist_ok=True)
        c.save(self.path / "config.json")
        last = self.step if c.resume else -1  # a run that never came to a checkpoint is begun anew
        if not c.resume:
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
        drop_later(self.path, last, min(last, self.next_evaluation - 1))
        self.log = RunLog(self.path)
        self.terminal = Terminal(title(c), c.steps)

    def run(self) -> dict:
        c = self.config
        began = time.monotonic() - self.elapsed
        if not c.resume:
            self._prefill()
        if self.learner.updates == 0 and self.stop:
            return self._stopped("before learning began; nothing to save")
        self._new_episodes()
        self._evaluate_if_due()
        while self.step < c.steps and not self.stop:
            before = self.step
            self._advance()
            self.elapsed = time.monotonic() - began
            if self.step >= next_multiple(before, c.log_every):
                self._log()
            if self.step >= next_multiple(before, c.checkpoint_every) and self.step < c.steps:
                self._checkpoint()
                self._new_episodes()
            self._evaluate_if_due()
        return self._finish()

    def _advance(self) -> None:
        """One pass: first all work for the device, which does not wait, then the environments."""
        evaluation = self.evaluation if self.evaluation.running else None
        action, self.carry = self.learner.act(self.carry, self.row, self.count)
        if evaluation:
            evaluation.act()
        self.debt += self.config.updates_per_step * steps_in(self.row) / self.config.seeds
        self.debt -= self.learner.update(self.debt)
        self._send(np.asarray(action))
        if evaluation:
            evaluation.send()
        self._receive()
        if evaluation:
            self._report(evaluation.receive())
        self.taken += steps_in(self.row)
        self.step = self.taken // self.config.seeds
        self.count += 1

    def _send(self, action: np.ndarray) -> None:
        self.envs.send(action.reshape(self.envs.count, -1))

    def _receive(self) -> list[float]:
        """The rows of the environments go into the replay; returns of the episodes that they complete."""
        row, episodes = self.envs.receive()
        self.row = self._by_seed(row)
        self.learner.add(self.row)
        returns = [episode.reward for episode in episodes]
        self.returns = (self.returns + returns)[-self.envs.count :]
        return returns

    def _prefill(self) -> None:
        """Random actions until the replay can be learned from; these episodes also tell the random policy's return."""
        c, steps = self.config, 0
        rngs = [np.random.default_rng([c.seed + s, 1]) for s in range(c.seeds)]
        self._new_episodes(stream=1)
        while steps < c.prefill * c.seeds and not self.stop:
            action = np.stack([rng.uniform(-1, 1, (c.envs, self.envs.action_size)) for rng in rngs])
            self._send(action)
            self.random_returns += self._receive()
            steps += steps_in(self.row)
        self.returns = []

    def _new_episodes(self, stream: int = 0) -> None:
        """Reset all environments, seeded by the step: a resumed run meets what an uninterrupted one would have met."""
        c = self.config
        sequences = [[c.seed + s, self.step, self.count, i, stream] for s in range(c.seeds) for i in range(c.envs)]
        row = self.envs.reset([np.random.SeedSequence(s).generate_state(1)[0] for s in sequences])
        self.row, self.carry = self._by_seed(row), self.learner.initial_carry(c.envs)
        self.learner.add(self.row)

    def _by_seed(self, row: Batch) -> Batch:
        return jax.tree.map(lambda x: x.reshape(self.config.seeds, self.config.envs, *x.shape[1:]), row)

    def _evaluate_if_due(self) -> None:
        """Start an evaluation, to be advanced in the passes that follow; the final policy's is run by `_finish`."""
        if self.step >= self.next_evaluation and self.step < self.config.steps:
            if self.evaluation.running:
                self._report(self.evaluation.finish())
            self.evaluation.start(self.step)
            self.next_evaluation = next_multiple(self.step, self.config.eval_every)

    def _report(self, results) -> None:
        """Write a completed evaluation: numbers, film, terminal."""
        if results is None:
            return
        self.results = results
        self.log.evaluation(results)
        write_film(self.path / "videos" / f"{results[0].step:09d}.mp4", self.evaluation.frames)
        summary = summarise(results)
        unseen = summary.get("test", summary["clean"])["return"]
        self.terminal.show(self.step, unseen=f"{unseen:.0f}")
        if not self.terminal.console.is_terminal:
            text = "  ".join(f"{split} {s['return']:.1f}" for split, s in summary.items())
            self.terminal.say(f"{results[0].step:>9,} steps  {self.elapsed:6.0f} s  return: {text}")

    def _log(self) -> None:
        fields = {}
        for seed, metrics in enumerate(self.learner.metrics()):
            values = {"updates": self.learner.updates, "wall_time": round(self.elapsed, 2)} | metrics
            if self.returns:
                values["return"] = float(np.mean(self.returns))
            self.log.metrics(self.step, self.config.seed + seed, values)
            if metrics:
                fields = {"KL": f"{metrics['kl']:.1f} ({self.config.epsilon:g})", "beta": f"{metrics['beta']:.2g}"}
        if self.returns:
            fields = {"return": f"{np.mean(self.returns):.0f}"} | fields
        self.terminal.show(self.step, **fields)

    def _checkpoint(self) -> None:
        if self.evaluation.running:
            self._report(self.evaluation.finish())
        self.save()

    def save(self) -> None:
        """Write a checkpoint; an evaluation under way is begun again on resume."""
        if self.evaluation.running:
            self.next_evaluation = self.evaluation.step
        counters = {name: getattr(self, name) for name in COUNTERS}
        checkpoint.save(self.path, self.learner, self.step, counters, replay=self.config.save_replay)

    def _restore(self, counters: dict) -> None:
        self.step = counters["step"]
        for name in COUNTERS:
            setattr(self, name, counters[name])

    def _finish(self) -> dict:
        """Save, evaluate the final policy, show the table."""
        self._checkpoint()
        if self.stop:
            return self._stopped(f"at step {self.step:,} and saved; go on with --resume --run {self.path}")
        self.evaluation.start(self.step)
        self._report(self.evaluation.finish())
        self.terminal.close()
        random_return = float(np.mean(self.random_returns)) if self.random_returns else None
        self.terminal.say("")
        self.terminal.console.print(result_table(self.results, random_return))
        self.terminal.say(
            f"{self.elapsed / 60:.1f} minutes, {self.learner.updates:,} updates; film: {self.path}/videos"
        )
        return summarise(self.results)

    def _stopped(self, text: str) -> dict:
        self.terminal.close()
        self.terminal.say(f"stopped {text}")
        return {}

    def close(self) -> None:
        self.terminal.close()
        self.log.close()
        self.envs.close()
        self.evaluation.close()


class stopping_signals:
    """While training, Ctrl-C and SIGTERM ask for a clean end; a second one ends at once."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer

    def _ask(self, number, frame):
        if self.trainer.stop:
            raise KeyboardInterrupt
        self.trainer.stop = True

    def __enter__(self):
        self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)


def steps_in(row: Batch) -> int:
    """Agent steps of all environments and seeds in a row."""
    return int((~row.first).sum())


def next_multiple(step: int, every: int) -> int:
    """The first multiple of `every` after `step`."""
    return (step // every + 1) * every


def record_videos(config: Config) -> None:
    """Write which clips each split uses beside the run's settings; decodes them once, before the workers start."""
    if "test" not in splits_of(config.task):
        return
    names = {
        split: list(clips_of(config.videos, split, config.color, config.protocol, config.seed).names)
        for split in ("train", "test")
    }
    path = Path(config.run)
    path.mkdir(parents=True, exist_ok=True)
    (path / "videos.json").write_text(json.dumps(names, indent=2) + "\n")


def title(config: Config) -> str:
    device = jax.devices()[0].device_kind
    source = f"videos {config.videos}" if config.videos else "built-in moving pictures"
    source = f"   {source}" if "test" in splits_of(config.task) else ""
    return f"{config.agent} on {config.task}{source}   preset {config.preset}   {device}   {config.run}"
