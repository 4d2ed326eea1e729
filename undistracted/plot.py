"""Learning curves: returns by agent steps, a panel a task and a line a method, mean and interval over seeds.

    undistracted plot runs/walker-walk-* --out walker
    undistracted plot repo=results/curves/repo/distracted/walker-walk.csv "slow price=runs/slow" --steps 100000

Takes run directories and files with the columns of their eval.csv. A curve's name is its run's agent, with the variant
of an adaptation, or what stands before the =; runs of one name and task are one curve, of as many seeds.
"""

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import tyro

from undistracted.adapt.config import AdaptConfig
from undistracted.config import Config
from undistracted.envs.tasks import task_names
from undistracted.errors import UserError
from undistracted.files import check_folder

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
    run = path.parent if path.name == "eval.csv" else path
    if run.is_dir():
        config, adapted = Config.load_run(run), (run / "adapt.json").exists()
        own = f"{config.agent} {AdaptConfig.load_run(run).variant}" if adapted else config.agent
        return name or own, config.task, run / "eval.csv"
    if path.suffix == ".csv" and path.exists() and len(path.absolute().parts) > 3:
        agent, family, stem = path.absolute().with_suffix("").parts[-3:]
        task, more = divide(f"{family}/{stem}")
        return name or agent + more, task, path
    raise UserError(f"'{path}' is neither a run directory nor the .csv file of a curve")


def divide(stem: str) -> tuple[str, str]:
    """A file's task, and what its name says besides: `dmc/walker-walk-slow` -> (`dmc/walker-walk`, ` slow`)."""
    tasks = [task for task in task_names() if f"{stem}-".startswith(f"{task}-")]
    task = max(tasks, key=len, default=stem)
    return task, stem[len(task) :].replace("-", " ", 1)


def read(arguments: list[str], split: str, steps: int | None) -> list[Point]:
    """The points of all curves: first the mean over each seed's episodes, then mean and interval over seeds."""
    episodes, files = defaultdict(lambda: defaultdict(list)), {}
    for argument in arguments:
        name, task, path = source(argument)
        try:
            rows = [
                (int(r["step"]), r["seed"], r["split"], float(r["return"]), r["episode"])
                for r in csv.DictReader(path.read_text().splitlines())
            ]  # the episode, because a table of means has none
        except (KeyError, TypeError, ValueError, FileNotFoundError):
            raise UserError(f"{path} does not hold the columns of an eval.csv") from None
        there = {row[2] for row in rows}
        wanted = split if split != "auto" else "test" if "test" in there else "clean"
        for seed in dict.fromkeys(row[1] for row in rows):
            if files.setdefault((task, name, seed), path) != path:
                both = f"{files[task, name, seed]} and {path} are both '{name}' on {task} with seed {seed}"
                raise UserError(f"{both}; name them apart by NAME=RUN")
        for step, seed, _, reward, _ in (row for row in rows if row[2] == wanted):
            if steps is None or step <= steps:
                episodes[task, name, wanted, step][seed].append(reward)
    if not episodes:
        where = f"no evaluation to draw in {', '.join(arguments)}" if arguments else "no run to draw"
        raise UserError(f"{where}; name a run directory that has one")
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
    columns = min(len(tasks), 3)
    rows = -(-len(tasks) // columns)
    size = (1.5 + 4.5 * columns, 3.8 * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(tasks) :]:
        axis.remove()
    for (task, split), axis in zip(tasks, axes.flat, strict=False):
        for i, name in enumerate(names):
            curve = [p for p in points if (p.task, p.split, p.name) == (task, split, name)]
            if curve:
                steps, colour, style = [p.step for p in curve], f"C{i % 10}", ("-", "--", ":")[i // 10 % 3]
                look = dict(color=colour, ls=style, lw=1 if i else 2.5)
                axis.plot(steps, [p.mean for p in curve], marker=".", label=name, **look)
                axis.fill_between(steps, [p.low for p in curve], [p.high for p in curve], color=colour, alpha=0.2, lw=0)
        axis.set(title=f"{task}, {SPLITS[split]}", xlabel="agent steps", ylim=(0, None), xlim=(0, None))
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k")
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("return")
    figure.legend(*legend(axes.flat[: len(tasks)]), loc="outside right center", fontsize=9)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def legend(axes) -> tuple[list, list]:
    """Each name once, whichever panel has it."""
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    return list(handles.values()), list(handles)


def plot(options: PlotConfig) -> list[Point]:
    """Write OUT.csv and OUT.png; lines in the order of the arguments, the first one bold."""
    points = read(options.runs, options.split, options.steps)
    out = Path(options.out.removesuffix(".png").removesuffix(".csv"))
    check_folder(out.parent, "--out")
    out.parent.mkdir(parents=True, exist_ok=True)
    table, picture = out.with_name(f"{out.name}.csv"), out.with_name(f"{out.name}.png")
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([Point._fields, *points])
    draw(points, list(dict.fromkeys(source(run)[0] for run in options.runs)), picture)
    for last in {(p.task, p.name): p for p in points}.values():
        spread = f"  ({last.low:.0f} to {last.high:.0f})" if last.seeds > 1 else ""
        seeds = f"{last.seeds} seed{'s' if last.seeds > 1 else ''}"
        print(f"{last.task}  {last.name}: {last.mean:.0f} at {last.step:,} steps, {seeds}{spread}", file=sys.stderr)
    print(f"{picture} and {table}", file=sys.stderr)
    return points
