"""From adapted runs to one table and one figure.

    python -m undistracted.adapt.results runs/walker-walk-* --out adaptation

writes adaptation.csv, mean returns by task, variant, seed, step and split, and adaptation.png. At step 0 the encoder is
the source's: its return on train and test is that of a frozen agent, on clean the one to recover.
"""

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from undistracted.adapt.config import VARIANTS, AdaptConfig
from undistracted.errors import UserError, told
from undistracted.files import check_folder
from undistracted.plot import legend

COLUMNS = "task", "variant", "seed", "step", "split", "return"


@dataclass(frozen=True)
class ResultsConfig:
    """Collect the returns of adapted runs."""

    runs: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Run directories of adaptations."""
    out: str = "adaptation"
    """Where to write, without the .csv and .png."""


def collect(runs: list[Path]) -> list[tuple]:
    """Rows of the table: means over the episodes of each evaluation."""
    episodes = defaultdict(list)
    for run in runs:
        options = AdaptConfig.load_run(run)
        for row in csv.DictReader((run / "eval.csv").open(newline="")):
            place = options.task, options.variant, int(row["seed"]), int(row["step"]), row["split"]
            episodes[place].append(float(row["return"]))
    if not episodes:
        raise UserError(f"no evaluation in {', '.join(map(str, runs))}")
    return [(*place, round(float(np.mean(returns)), 1)) for place, returns in sorted(episodes.items())]


def mean_return(rows: list[tuple], task: str, variant: str | None, step: int, split: str) -> float:
    """Over the seeds; over all variants, too, where none is named."""
    return float(np.mean([r for t, v, _, i, s, r in rows if (t, i, s) == (task, step, split) and variant in (v, None)]))


def summary(rows: list[tuple]) -> list[str]:
    """For every task and variant: the frozen agent's return, the adapted one's, and how much of clean was recovered."""
    lines = []
    for task in dict.fromkeys(row[0] for row in rows):
        clean = mean_return(rows, task, None, 0, "clean")
        lines.append(f"{task}: clean {clean:.0f} before adapting")
        for variant in [v for v in VARIANTS if v in {row[1] for row in rows if row[0] == task}]:
            last = max(row[3] for row in rows if row[:2] == (task, variant))
            for split in ("train", "test"):
                before, after = (mean_return(rows, task, variant, step, split) for step in (0, last))
                share = f"{after / clean:4.0%} of clean"
                lines.append(f"  {variant:26s} {split:5s} {before:6.0f} -> {after:6.0f} at {last:,} steps  {share}")
    return lines


def draw(rows: list[tuple], path: Path) -> None:
    """Tasks by rows, the clips adapted on and unseen ones by columns, a line a variant, dotted what is to recover."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks, titles = list(dict.fromkeys(row[0] for row in rows)), {"train": "clips adapted on", "test": "unseen clips"}
    figure, axes = pyplot.subplots(
        len(tasks), 2, figsize=(9, 3.2 * len(tasks)), sharex=True, sharey="row", squeeze=False
    )
    for task, pair in zip(tasks, axes, strict=True):
        for (split, title), axis in zip(titles.items(), pair, strict=True):
            axis.axhline(
                mean_return(rows, task, None, 0, "clean"), color="gray", ls=":", label="clean, before adapting"
            )
            for i, variant in enumerate(VARIANTS):
                steps = sorted({row[3] for row in rows if row[:2] == (task, variant)})
                if steps:
                    returns = [mean_return(rows, task, variant, step, split) for step in steps]
                    width = 2.5 if variant == "calibrated-support" else 1.2
                    axis.plot(steps, returns, marker=".", color=f"C{i}", label=variant, lw=width)
            axis.set(title=f"{task}, {title}")
            axis.update_datalim([(0, 0)])  # from zero up, to the highest of both: a limit set now would be the first's
        pair[0].set_ylabel("return")
    for axis in axes[-1]:
        axis.set_xlabel("agent steps")
    figure.legend(*legend(axes[:, 0]), loc="outside lower center", ncols=4, fontsize=8)
    figure.tight_layout(rect=(0, 0.18 / len(tasks), 1, 1))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def results(options: ResultsConfig) -> list[tuple]:
    rows = collect([Path(run) for run in options.runs])
    out = Path(options.out)
    check_folder(out.parent, "--out")
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_suffix(".csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    draw(rows, out.with_suffix(".png"))
    print("\n".join(summary(rows)), file=sys.stderr)
    return rows


if __name__ == "__main__":
    sys.exit(told(results, tyro.cli(ResultsConfig)))
