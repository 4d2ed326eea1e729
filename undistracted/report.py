"""What a run tells of itself: its evaluations, in numbers and films, and what its model makes of what it sees."""

from pathlib import Path

import numpy as np

from undistracted.config import Config
from undistracted.evaluation import Evaluation, Result, summarise
from undistracted.film import FilmWriter, png, sheet
from undistracted.logger import RunLog, Terminal, result_table
from undistracted.wandb_log import WandbLog


class Report:
    """Writes to the run's directory and shows on the terminal, while training goes on."""

    def __init__(self, config: Config, terminal: Terminal, first: int):
        self.run, self.terminal = Path(config.run), terminal
        self.log = RunLog(self.run, terminal.say, first, WandbLog(config) if config.wandb else None)
        self.films = FilmWriter(terminal.say)

    def evaluation(self, results: list[Result], evaluation: Evaluation, step: int, elapsed: float) -> None:
        """Tell a completed evaluation, at a step that may be later than its own."""
        self.log.evaluation(results)
        self.films.write(self.run / "videos" / f"{results[0].step:09d}.mp4", evaluation.frames)
        self.model(results[0].step, evaluation.pictures())
        summary = summarise(results)
        unseen = summary.get("test", summary["clean"])["return"]
        self.terminal.show(step, unseen=f"{unseen:.0f}")
        if not self.terminal.console.is_terminal:
            text = "  ".join(f"{split} {s['return']:.1f}" for split, s in summary.items())
            self.terminal.say(f"{results[0].step:>9,} steps  {elapsed:6.0f} s  return: {text}")

    def model(self, step: int, films: dict[str, np.ndarray]) -> None:
        """Write what the model makes of an episode: a film, and a sheet of some of its moments."""
        if films:
            file, picture = self.run / "videos" / f"{step:09d}-model.mp4", sheet(films)
            self.films.write(file, {name: list(film) for name, film in films.items()})
            self.films.write(file.with_suffix(".png"), picture)
            self.log.picture(step, "model", png(picture), picture.shape)

    def final(self, results: list[Result], random_returns: list[float], elapsed: float, updates: int) -> None:
        """Once all films are written, show the table of the last evaluation."""
        self.films.close()
        self.terminal.close()
        self.terminal.say("")
        random_return = float(np.mean(random_returns)) if random_returns else None
        self.terminal.console.print(result_table(results, random_return))
        took = f"{elapsed / 60:.1f} minutes without set-up and last evaluation"
        self.terminal.say(f"{took}, {updates:,} updates; film: {self.run}/videos")

    def close(self) -> None:
        self.films.close()
        self.terminal.close()
        self.log.close()
