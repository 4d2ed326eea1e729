"""What a run writes and shows: metrics.jsonl, eval.csv, TensorBoard events, and one line on the terminal."""

import csv
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from undistracted.evaluation import Result, summarise
from undistracted.files import write_whole
from undistracted.wandb_log import WandbLog

EVAL_COLUMNS = "step", "seed", "split", "episode", "return", "length", "success"


class Appended:
    """A file that only grows, and at once, so that a crash loses nothing. What a full disk refuses waits for room."""

    def __init__(self, path: Path, say: Callable[[str], None]):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.say, self.waiting, self.file = path, say, b"", path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        known, self.waiting = bool(self.waiting), self.waiting + data
        try:
            while self.waiting:
                self.waiting = self.waiting[self.file.write(self.waiting) :]
        except OSError as e:
            if not known:
                self.say(f"cannot write to {self.path} ({e.strerror}); what is logged waits until there is room")

    def close(self) -> None:
        self.write(b"")
        if self.waiting:
            self.say(f"{self.path} lacks its last {len(self.waiting):,} bytes: there was no room until the end")
        self.file.close()


class RunLog:
    """Appends to the files of a run directory, from a step on; `say` hears of a disk that is full. W&B hears of every
    scalar, too, where there is one."""

    def __init__(self, run: Path, say: Callable[[str], None], first: int = 0, wandb: WandbLog | None = None):
        self.wandb = wandb
        events = run / "tensorboard" / f"events.out.tfevents.{time.time_ns()}"
        files = run / "metrics.jsonl", run / "eval.csv", events
        self.files = self.metrics_file, self.eval_file, self.events_file = [Appended(path, say) for path in files]
        self.events = RecordWriter(self.events_file)
        self._event(file_version="brain.Event:2")
        self._forget(first)
        if self.eval_file.file.tell() == 0:
            self._write_rows([EVAL_COLUMNS])

    def metrics(self, step: int, seed: int, values: dict) -> None:
        self.metrics_file.write((json.dumps({"step": step, "seed": seed} | values) + "\n").encode())
        self._scalars(step, seed, values)

    def evaluation(self, results: list[Result]) -> None:
        self._write_rows((*r[:4], f"{r.reward:.3f}", r.length, "" if r.success is None else r.success) for r in results)
        for seed in {r.seed for r in results}:
            summary = summarise([r for r in results if r.seed == seed])
            self._scalars(results[0].step, seed, {f"eval/{split}": s["return"] for split, s in summary.items()})

    def picture(self, step: int, name: str, png: bytes, shape: tuple[int, ...]) -> None:
        image = Summary.Image(encoded_image_string=png, height=shape[0], width=shape[1], colorspace=3)
        self._event(step=step, summary=Summary(value=[Summary.Value(tag=name, image=image)]))

    def close(self) -> None:
        for file in self.files:
            file.close()
        if self.wandb:
            self.wandb.close()

    def _write_rows(self, rows) -> None:
        self.eval_file.write(table(rows).encode())

    def _forget(self, first: int) -> None:
        """Have TensorBoard drop what an earlier process told it of these steps, but for what metrics.jsonl has kept."""
        self._event(step=first, session_log=SessionLog(status=SessionLog.START))
        for line in self.metrics_file.path.read_text().splitlines():
            values = json.loads(line)
            if values["step"] >= first:
                self._scalars(values.pop("step"), values.pop("seed"), values)

    def _scalars(self, step: int, seed: int, values: dict) -> None:
        values = {f"seed{seed}/{name}": value for name, value in values.items()}
        self._event(step=step, summary=Summary(value=[Summary.Value(tag=k, simple_value=v) for k, v in values.items()]))
        if self.wandb:
            self.wandb.scalars(step, values)

    def _event(self, **fields) -> None:
        self.events.write(Event(wall_time=time.time(), **fields).SerializeToString())


def table(rows) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def drop_later(run: Path, last_metrics: int, last_evaluation: int) -> None:
    """Forget what was logged after the checkpoint that a run resumes from: those steps are taken again."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    lines = [line for line in lines if line.endswith("}")]  # a full disk or a power cut may have torn the last one
    lines = [line for line in lines if json.loads(line)["step"] <= last_metrics]
    write_whole(path, "".join(line + "\n" for line in lines))
    path = run / "eval.csv"
    rows = list(csv.reader(path.read_text().splitlines())) if path.exists() else []
    rows = [row for row in rows if len(row) == len(EVAL_COLUMNS)]
    write_whole(path, table(row for i, row in enumerate(rows) if i == 0 or int(row[0]) <= last_evaluation))


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
    """The returns of the final evaluation by split, of all seeds and of each, beside the random policy's."""
    own = {seed: summarise([r for r in results if r.seed == seed]) for seed in sorted({r.seed for r in results})}
    own = own if len(own) > 1 else {}
    columns = "split", "return", "std", "episodes", *(f"seed {seed}" for seed in own)
    table = Table(*columns, title=f"step {results[0].step:,}")
    names = {"train": "train (seen videos)", "test": "test (unseen videos)", "clean": "clean (no video)"}
    for split, s in summarise(results).items():
        each = [f"{summary[split]['return']:.1f}" for summary in own.values()]
        table.add_row(names[split], f"{s['return']:.1f}", f"{s['std']:.1f}", str(s["episodes"]), *each)
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
