"""What a run writes and shows: metrics.jsonl, eval.csv, TensorBoard events, and one line on the terminal."""

import csv
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from undistracted.evaluation import Result, summarise

EVAL_COLUMNS = "step", "seed", "split", "episode", "return", "length", "success"


class RunLog:
    """Appends to the files of a run directory; every line is flushed, so that a crash loses nothing."""

    def __init__(self, run: Path):
        self.metrics_file = (run / "metrics.jsonl").open("a")
        self.eval_file = (run / "eval.csv").open("a", newline="")
        if self.eval_file.tell() == 0:
            self._write_rows([EVAL_COLUMNS])
        self.events = EventFileWriter(str(run / "tensorboard"))

    def metrics(self, step: int, seed: int, values: dict) -> None:
        self.metrics_file.write(json.dumps({"step": step, "seed": seed} | values) + "\n")
        self.metrics_file.flush()
        self._scalars(step, {f"seed{seed}/{name}": value for name, value in values.items()})

    def evaluation(self, results: list[Result]) -> None:
        self._write_rows((*r[:4], f"{r.reward:.3f}", r.length, "" if r.success is None else r.success) for r in results)
        for seed in {r.seed for r in results}:
            summary = summarise([r for r in results if r.seed == seed])
            self._scalars(results[0].step, {f"seed{seed}/eval/{split}": s["return"] for split, s in summary.items()})
        self.events.flush()

    def picture(self, step: int, name: str, png: bytes, shape: tuple[int, ...]) -> None:
        image = Summary.Image(encoded_image_string=png, height=shape[0], width=shape[1], colorspace=3)
        summary = Summary(value=[Summary.Value(tag=name, image=image)])
        self.events.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        for sink in (self.metrics_file, self.eval_file, self.events):
            sink.close()

    def _write_rows(self, rows) -> None:
        csv.writer(self.eval_file).writerows(rows)
        self.eval_file.flush()

    def _scalars(self, step: int, values: dict) -> None:
        summary = Summary(value=[Summary.Value(tag=k, simple_value=v) for k, v in values.items()])
        self.events.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def drop_later(run: Path, last_metrics: int, last_evaluation: int) -> None:
    """Forget what was logged after the checkpoint that a run resumes from: those steps are taken again."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    lines = [line for line in lines if line.endswith("}")]  # a full disk or a power cut may have torn the last one
    path.write_text("".join(line + "\n" for line in lines if json.loads(line)["step"] <= last_metrics))
    path = run / "eval.csv"
    rows = list(csv.reader(path.open(newline=""))) if path.exists() else []
    rows = [row for row in rows if len(row) == len(EVAL_COLUMNS)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(row for i, row in enumerate(rows) if i == 0 or int(row[0]) <= last_evaluation)


class Terminal:
    """A progress bar on a terminal; elsewhere, one line an evaluation."""

    def __init__(self, title: str, steps: int):
        self.console = Console(stderr=True, highlight=False)
        self.console.print(title, soft_wrap=True)
        columns = TextColumn("{task.fields[count]}"), BarColumn(None), TextColumn("{task.fields[text]}")
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.steps, self.fields, self.began, self.first = steps, {}, time.monotonic(), None
        self.task = self.bar.add_task("", total=steps, count="", text="compiling")
        self.bar.start()

    def show(self, step: int, **fields) -> None:
        """Update the bar; a field stays on it until it is replaced."""
        if self.first is None:
            self.first, self.began = step, time.monotonic()
        self.fields |= fields
        rate = (step - self.first) / max(time.monotonic() - self.began, 1e-6)
        left = f"{(self.steps - step) / rate:.0f}" if rate else "?"
        left = f"{int(left) // 60}:{int(left) % 60:02d}" if left != "?" else left
        text = "  ".join(f"{name} {value}" for name, value in self.fields.items())
        count = f"{step / 1000:.1f}k / {self.steps / 1000:g}k"
        self.bar.update(self.task, completed=step, count=count, text=f"{text}  {rate:,.0f} steps/s  {left} left")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def close(self) -> None:
        self.bar.stop()


def result_table(results: list[Result], random_return: float | None) -> Table:
    """The returns of the final evaluation by split, beside the random policy's."""
    table = Table("split", "return", "std", "episodes", title=f"step {results[0].step:,}")
    names = {"train": "train (seen videos)", "test": "test (unseen videos)", "clean": "clean (no video)"}
    for split, s in summarise(results).items():
        table.add_row(names[split], f"{s['return']:.1f}", f"{s['std']:.1f}", str(s["episodes"]))
    if random_return is not None:
        table.add_row("random policy", f"{random_return:.1f}", "", "")
    return table


def print_summary(summary: dict[str, dict]) -> None:
    for split, s in summary.items():
        success = f"  success {s['success']:.0%}" if "success" in s else ""
        print(
            f"{split:6s} return {s['return']:.1f} +- {s['std']:.1f} over {s['episodes']} episodes{success}",
            file=sys.stderr,
        )
