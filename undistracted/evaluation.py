"""Evaluation: many episodes at once on each split, by the means of posterior and policy, beside training or alone."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.progress import Progress

from undistracted.config import Config
from undistracted.data import by_seed
from undistracted.errors import UserError
from undistracted.files import check_folder
from undistracted.film import write_film
from undistracted.rollout import Environments, episode_seeds

SPLITS = "train", "test", "clean"
SHOWN = 100  # rows of an episode that the model's pictures are made of


class Result(NamedTuple):
    """One row of eval.csv."""

    step: int
    seed: int
    split: str
    episode: int
    reward: float
    length: int
    success: float | None


def splits_of(task: str) -> tuple[str, ...]:
    """Only distracted tasks have backgrounds to split by."""
    return SPLITS if task.split("/")[0] in ("distracted", "scoreboard") else ("clean",)


class Evaluation:
    """Environments of every seed and split, stepped one row at a time, so that training can go on in between.

    `start` copies the policy; then `act`, `send` and `receive` take one step of every environment. Once all episodes
    are complete, `receive` returns the results, and `frames` holds a film of the first episode on each split.
    `pictures` then shows what the first seed's model makes of one of these, of unseen backgrounds where there are any.
    """

    def __init__(self, config: Config, learner, splits=None):
        self.config, self.learner = config, learner
        self.splits = splits or splits_of(config.task)
        self.per_split = min(config.eval_envs, config.eval_episodes)
        self.per_seed = self.per_split * len(self.splits)
        each = [(seed, split) for seed in range(config.seeds) for split in self.splits for _ in range(self.per_split)]
        self.envs = Environments([config.env(split, seed) for seed, split in each], config.processes)
        self.running = False
        self.shown = self.splits.index("test") if "test" in self.splits else 0
        pictures = getattr(learner.agent, "pictures", lambda policy, batch: {})
        self._pictures = jax.jit(lambda policy, batch: pictures(jax.tree.map(lambda x: x[0], policy), batch))

    def start(self, step: int) -> None:
        c = self.config
        self.step, self.running, self.results = step, True, []
        self.policy = self.learner.policy_copy()
        self.carry = self.learner.initial_carry(self.per_seed)
        # By the split's place among all of the task's: asked for alone, it has the same episodes.
        places = [
            splits_of(c.task).index(split) * self.per_split + i for split in self.splits for i in range(self.per_split)
        ]
        seeds = [[c.seed + s, step, place] for s in range(c.seeds) for place in places]
        self.row = self.envs.reset(episode_seeds(seeds))
        self.frames = {split: [] for split in self.splits}
        self.rows = []  # of the episode whose pictures are shown
        self.played = np.zeros(self.envs.count, int)  # episodes that each environment has completed

    def act(self) -> None:
        """Ask the device for the next actions."""
        self._film()
        self.action, self.carry = self.learner.act(self.carry, by_seed(self.row, self.config.seeds), 0, self.policy)

    def send(self) -> None:
        """Hand the actions to the environments."""
        self.envs.send(np.asarray(self.action).reshape(self.envs.count, -1))

    def receive(self) -> list[Result] | None:
        """The environments' rows; the results, once all episodes are complete."""
        self.row, episodes = self.envs.receive()
        for episode in episodes:
            seed, split = divmod(episode.env // self.per_split, len(self.splits))
            number = int(self.played[episode.env]) * self.per_split + episode.env % self.per_split
            if number < self.config.eval_episodes:  # each plays its share: the first to end would favour short ones
                results = self.step, self.config.seed + seed, self.splits[split], number
                self.results.append(Result(*results, *episode[1:]))
            self.played[episode.env] += 1
        self.running = len(self.results) < self.config.seeds * len(self.splits) * self.config.eval_episodes
        return None if self.running else sorted(self.results, key=lambda r: (r.seed, SPLITS.index(r.split), r.episode))

    def finish(self, progress=lambda episodes: None) -> list[Result]:
        """Complete the evaluation under way; `progress` hears how many episodes are complete."""
        results = None
        while results is None:
            self.act()
            self.send()
            results = self.receive()
            progress(len(self.results))
        return results

    def pictures(self) -> dict[str, np.ndarray]:
        """Films (T, 64, 64, 3) by name, of agents that have them; padded rows keep the call at one shape."""
        rows = [*self.rows, *[self.rows[-1]] * (SHOWN - len(self.rows))]
        batch = jax.tree.map(lambda *x: np.stack(x)[:, None], *rows)
        films = self._pictures(self.policy, batch)
        return {name: np.asarray(film)[: len(self.rows)] for name, film in films.items()}

    def close(self) -> None:
        self.envs.close()

    def _film(self) -> None:
        for i, split in enumerate(self.splits):
            if self.played[i * self.per_split] == 0:
                self.frames[split].append(self.row.obs[i * self.per_split].copy())
                if i == self.shown and len(self.rows) < SHOWN:
                    self.rows.append(jax.tree.map(lambda x, env=i * self.per_split: x[env].copy(), self.row))


def summarise(results: list[Result]) -> dict[str, dict]:
    """Mean, standard deviation and count of the returns by split, and the success rate where there is one."""
    summary = {}
    for split in dict.fromkeys(r.split for r in results):
        rows = [r for r in results if r.split == split]
        returns = np.array([r.reward for r in rows])
        summary[split] = {"return": float(returns.mean()), "std": float(returns.std()), "episodes": len(rows)}
        if all(r.success is not None for r in rows):
            summary[split]["success"] = float(np.mean([r.success for r in rows]))
    return summary


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluate a run's newest checkpoint."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    task: str | None = None
    """Another task to evaluate on, with the same action size; the run's own without it."""
    split: Literal["train", "test", "clean", "all"] = "test"
    """Backgrounds: seen in training, never seen, none, or all three."""
    episodes: int = 16
    """Episodes per split and seed."""
    videos: str | None = None
    """Another folder of videos; the run's own without it."""
    video: str | None = None
    """Write a film of the first episodes to this .mp4 file."""
    json: bool = False
    """Print one JSON object on stdout and nothing else there."""


def evaluate(options: EvaluateConfig) -> dict:
    """Returns by split of a run's newest checkpoint, e.g. `evaluate(EvaluateConfig("runs/x"))["test"]["return"]`."""
    from undistracted.checkpoint import load_learner

    if options.episodes < 1:
        raise UserError(f"--episodes is {options.episodes}; it must be at least 1")
    if options.video and Path(options.video).suffix != ".mp4":
        raise UserError(f"--video is {options.video}; films are .mp4 files")
    if options.video:
        check_folder(Path(options.video).parent, "--video")
    config = Config.load_run(Path(options.run))
    changes = {"task": options.task, "videos": options.videos}
    config = dataclasses.replace(config, **{k: v for k, v in changes.items() if v is not None})
    config = dataclasses.replace(config, eval_episodes=options.episodes)
    learner, step = load_learner(Path(options.run), config)
    splits = splits_of(config.task) if options.split == "all" else (options.split,)
    if not set(splits) <= set(splits_of(config.task)):
        splits = splits_of(config.task)  # an undistracted task has one look only
    evaluation = Evaluation(config, learner, splits)
    try:
        if evaluation.envs.action_size != learner.agent.action_size:
            raise UserError(
                f"'{config.task}' takes {evaluation.envs.action_size} actions, the run's agent has "
                f"{learner.agent.action_size}; evaluate it on a task of the same body"
            )
        evaluation.start(step)
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            total = config.seeds * len(splits) * options.episodes
            task = bar.add_task(f"{total} episodes of {config.task}", total=total)
            results = evaluation.finish(lambda episodes: bar.update(task, completed=episodes))
    finally:
        evaluation.close()
    summary = summarise(results)
    if options.video:
        write_film(Path(options.video), evaluation.frames)
        print(f"film: {options.video}", file=sys.stderr)
    if options.json:
        returns = {split: [r.reward for r in results if r.split == split] for split in summary}
        print(
            json.dumps({"run": options.run, "task": config.task, "step": step, "splits": summary, "returns": returns})
        )
    return summary
