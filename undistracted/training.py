"""The training loop: collect, learn, evaluate, log, checkpoint.

One pass of the loop is one step of every environment, those of an evaluation under way included. The device is given
the policy's steps and then the updates that are owed, and while it works on them the host steps the environments. So
the policy that acts is the newest there is, and the updates sample what was there before the pass. With --sync they
wait for its rows: strict alternation, slower. Nothing depends on timing either way: the same seed gives the same run.
"""

import dataclasses
import shutil
import time
from pathlib import Path

import jax
import numpy as np

from undistracted import checkpoint
from undistracted.collector import Collector, record_videos
from undistracted.config import Config
from undistracted.errors import UserError
from undistracted.evaluation import Evaluation, splits_of, summarise
from undistracted.film import FilmWriter, png, sheet
from undistracted.interrupt import asked_to_stop
from undistracted.learner import Learner
from undistracted.logger import RunLog, Terminal, drop_later, result_table
from undistracted.presets import complete
from undistracted.rollout import Environments
from undistracted.workers import DeadEnvironment

# What a checkpoint keeps of the loop.
COUNTERS = "taken", "count", "debt", "next_evaluation", "elapsed"


def train(config: Config) -> dict:
    """Train as configured; the summary of the final evaluation, e.g. `train(config)["test"]["return"]`."""
    return drive(Trainer(prepare(config)))


def drive(trainer: "Trainer") -> dict:
    """Run to the end, or until asked to stop, and leave nothing running."""
    with asked_to_stop(trainer):
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
        envs = Environments([c.env("train", seed) for seed in range(c.seeds) for _ in range(c.envs)], c.processes)
        try:
            self.learner = self.make_learner(envs.action_size)
        except BaseException:
            envs.close()
            raise
        self.collector = Collector(c, envs, self.learner)
        self.evaluation = Evaluation(c, self.learner)
        self.stop = False
        self.taken = self.step = self.count = self.debt = 0  # steps of all seeds, of each; passes; updates owed
        self.next_evaluation, self.elapsed, self.results = 0, 0.0, None
        if c.resume:
            self._restore(checkpoint.load(self.path, self.learner))
        self.path.mkdir(parents=True, exist_ok=True)
        c.save(self.path / "config.json")
        last = self.step if c.resume else -1  # a run that never came to a checkpoint is begun anew
        if not c.resume:
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
        drop_later(self.path, last, min(last, self.next_evaluation - 1))
        self.terminal = Terminal(self._title(), c.steps)
        self.log = RunLog(self.path, self.terminal.say)
        self.films = FilmWriter(self.terminal.say)

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
        if self.config.sync:
            self._learn()
        if evaluation:
            self._report(evaluation.receive())
        self.taken += self.collector.steps
        self.step = self.taken // self.config.seeds
        self.count += 1

    def _learn(self) -> None:
        self.debt += self.config.updates_per_step * self.collector.steps / self.config.seeds
        self.debt -= self.learner.update(self.debt)

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
        self.films.write(self.path / "videos" / f"{results[0].step:09d}.mp4", self.evaluation.frames)
        self._show_model(results[0].step)
        summary = summarise(results)
        unseen = summary.get("test", summary["clean"])["return"]
        self.terminal.show(self.step, unseen=f"{unseen:.0f}")
        if not self.terminal.console.is_terminal:
            text = "  ".join(f"{split} {s['return']:.1f}" for split, s in summary.items())
            self.terminal.say(f"{results[0].step:>9,} steps  {self.elapsed:6.0f} s  return: {text}")

    def _show_model(self, step: int) -> None:
        """Write what the model makes of an episode: a film, and a sheet of some of its moments."""
        films = self.evaluation.pictures()
        if films:
            file, picture = self.path / "videos" / f"{step:09d}-model.mp4", sheet(films)
            self.films.write(file, {name: list(film) for name, film in films.items()})
            self.films.write(file.with_suffix(".png"), picture)
            self.log.picture(step, "model", png(picture), picture.shape)

    def _log(self) -> None:
        for seed, metrics in enumerate(self.metrics()):
            values = {"updates": self.learner.updates, "wall_time": round(self.elapsed, 2)} | metrics
            if self.collector.returns[seed]:
                values["return"] = float(np.mean(self.collector.returns[seed]))
            self.log.metrics(self.step, self.config.seed + seed, values)
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
        """Write a checkpoint; an evaluation under way is begun again on resume."""
        if self.evaluation.running:
            self.next_evaluation = self.evaluation.step
        counters = {name: getattr(self, name) for name in COUNTERS}
        counters |= {name: getattr(self.collector, name) for name in ("returns", "random_returns")}
        checkpoint.save(self.path, self.learner, self.step, counters, replay=self.config.save_replay)

    def _restore(self, counters: dict) -> None:
        self.step = counters["step"]
        for name in COUNTERS:
            setattr(self, name, counters[name])
        self.collector.returns, self.collector.random_returns = counters["returns"], counters["random_returns"]

    def _finish(self) -> dict:
        """Save, evaluate the final policy, show the table."""
        self._checkpoint()
        if self.stop:
            return self._stopped(f"at step {self.step:,} and saved; go on with --resume --run {self.path}")
        self.evaluation.start(self.step)
        self._report(self.evaluation.finish())
        self.films.close()
        self.terminal.close()
        random_return = float(np.mean(self.collector.random_returns)) if self.collector.random_returns else None
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

    def _title(self) -> str:
        c, device = self.config, jax.devices()[0].device_kind
        videos = f"videos {c.videos}   " if c.videos else "built-in moving pictures   "
        videos = videos if "test" in splits_of(c.task) else ""
        return f"{c.agent} on {c.task}   {videos}preset {c.preset}   {device}   {c.run}"

    def close(self) -> None:
        self.films.close()
        self.terminal.close()
        self.log.close()
        self.collector.envs.close()
        self.evaluation.close()


def next_multiple(step: int, every: int) -> int:
    """The first multiple of `every` after `step`."""
    return (step // every + 1) * every
