"""Learning curves: returns by agent steps, a panel a task and a line a method, mean and interval over seeds.

    undistracted plot runs/walker-walk-* --out walker
    undistracted plot repo=results/curves/repo/distracted/walker-walk.csv "slow price=runs/slow" --steps 100000

Takes run directories and files with the columns of their eval.csv. A curve's name is its run's agent, or what stands
before the =; runs of one name and task are one curve, each seed of each of them counting once.
"""

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import tyro

from undistracted.config import Config
from undistracted.errors import UserError

COLUMNS = "task", "name", "split", "step", "seeds", "mean", "low", "high"
SPLITS = {"train": "seen backgrounds", "test": "unseen backgrounds", "clean": "no background"}
RESAMPLES = 10_000


@dataclass(frozen=True)
class PlotConfig:
    """Draw the learning curves of runs, and write them down."""

    runs: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME=]RUN ...")]
    """Run directories, or files with the columns of an eval.csv under AGENT/FAMILY/TASK.csv."""
    split: Literal["auto", "train", "test", "clean"] = "auto"
    """Backgrounds of the episodes; auto = test, where a task has it, else clean."""
    steps: int | None = None
    """Leave out what comes after this many agent steps."""
    out: str = "curves"
    """Where to write, without the .png and .csv."""


class Point(NamedTuple):
    """One row of the table: mean return over seeds, and the interval that it lies in."""

    task: str
    name: str
    split: str
    step: int
    seeds: int
    mean: float
    low: float
    high: float


def source(argument: str) -> tuple[str, str, Path]:
    """Name, task and eval.csv that an argument means."""
    named = "=" in argument and not Path(argument).exists()  # a path may have a = of its own
    name, path = argument.split("=", 1) if named else ("", argument)
    path = Path(path)
    if path.is_dir():
        config = Config.load_run(path)
        return name or config.agent, config.task, path / "eval.csv"
    if path.suffix == ".csv" and path.exists() and len(path.absolute().parts) > 3:
        agent, family, task = path.absolute().with_suffix("").parts[-3:]
        return name or agent, f"{family}/{task}", path
    raise UserError(f"'{path}' is neither a run directory nor the .csv file of a curve")


def read(arguments: list[str], split: str, steps: int | None) -> list[Point]:
    """The points of all curves: first the mean over each seed's episodes, then mean and interval over seeds."""
    episodes = defaultdict(lambda: defaultdict(list))
    for argument in arguments:
        name, task, path = source(argument)
        try:
            rows = [(int(r["step"]), r["seed"], r["split"], float(r["return"])) for r in csv.DictReader(path.open())]
        except (KeyError, TypeError, ValueError, FileNotFoundError):
            raise UserError(f"{path} does not hold the columns of an eval.csv") from None
        there = {row[2] for row in rows}
        wanted = split if split != "auto" else "test" if "test" in there else "clean"
        for step, seed, _, reward in (row for row in rows if row[2] == wanted):
            if steps is None or step <= steps:
                episodes[task, name, wanted, step][path, seed].append(reward)
    if not episodes:
        raise UserError(f"no evaluation to draw in {', '.join(arguments)}")
    return [
        Point(*place, len(seeds), *interval([np.mean(returns) for returns in seeds.values()]))
        for place, seeds in sorted(episodes.items())
    ]


def interval(values) -> tuple[float, float, float]:
    """Mean, and where 95 % of the means lie of as many values drawn from these again (percentile bootstrap)."""
    values = np.asarray(values, float)
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[drawn].mean(1), [2.5, 97.5])
    return tuple(round(float(x), 1) for x in (values.mean(), low, high))


def draw(points: list[Point], names: list[str], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys((p.task, p.split) for p in points))
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(1.5 + 4.5 * len(tasks), 3.8), squeeze=False)
    for (task, split), axis in zip(tasks, axes[0], strict=True):
        for i, name in enumerate(names):
            curve = [p for p in points if (p.task, p.split, p.name) == (task, split, name)]
            if curve:
                steps, colour = [p.step for p in curve], f"C{i}"
                axis.plot(steps, [p.mean for p in curve], marker=".", color=colour, label=name, lw=1 if i else 2.5)
                axis.fill_between(steps, [p.low for p in curve], [p.high for p in curve], color=colour, alpha=0.2, lw=0)
        axis.set(title=f"{task}, {SPLITS[split]}", xlabel="agent steps", ylim=(0, None), xlim=(0, None))
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("return")
    figure.legend(*legend(axes[0]), loc="outside right center", fontsize=9)
    figure.tight_layout(rect=(0, 0, 1 - 1.5 / figure.get_figwidth(), 1))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def legend(axes) -> tuple[list, list]:
    """Each name once, whichever panel has it."""
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    return list(handles.values()), list(handles)


def plot(options: PlotConfig) -> list[Point]:
    """Write OUT.csv and OUT.png; lines in the order of the arguments, the first one bold."""
    points = read(options.runs, options.split, options.steps)
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    table, picture = out.with_name(f"{out.name}.csv"), out.with_name(f"{out.name}.png")
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *points])
    draw(points, list(dict.fromkeys(source(run)[0] for run in options.runs)), picture)
    for last in {(p.task, p.name): p for p in points}.values():
        spread = f"  ({last.low:.0f} to {last.high:.0f})" if last.seeds > 1 else ""
        seeds = f"{last.seeds} seed{'s' if last.seeds > 1 else ''}"
        print(f"{last.task}  {last.name}: {last.mean:.0f} at {last.step:,} steps, {seeds}{spread}", file=sys.stderr)
    print(f"{picture} and {table}", file=sys.stderr)
    return points
