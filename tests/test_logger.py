"""What a run writes down and shows."""

import csv
import dataclasses
import errno
import io
import json
import os

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from undistracted.config import Config
from undistracted.evaluation import Result, summarise
from undistracted.logger import RunLog, Terminal, drop_later, print_summary, result_table
from undistracted.presets import preset_config
from undistracted.rundir import open_directory

RESULTS = [
    Result(100, 0, "train", 0, 10.0, 500, 1.0),
    Result(100, 0, "train", 1, 20.0, 500, 0.0),
    Result(100, 0, "test", 0, 7.12345, 400, None),
]


@pytest.fixture
def run(tmp_path):
    """Three lines of metrics, at steps 50, 100 and 150, and evaluations at 0, 100 and 150."""
    log = RunLog(tmp_path, pytest.fail)
    for step in (50, 100, 150):
        log.metrics(step, 0, {"kl": step / 10})
    for step in (0, 100, 150):
        log.evaluation([result._replace(step=step) for result in RESULTS])
    log.close()
    return tmp_path


class Disk:
    """Under a log's file: takes as many bytes as there is room for, and then refuses."""

    def __init__(self, file, room: int):
        self.file, self.room, self.close = file, room, file.close

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.file.write(data[: self.room])
        self.room -= taken
        return taken


def table(run):
    return list(csv.reader((run / "eval.csv").open(newline="")))


def logged(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def scalars(run):
    """Step, name and value of all in the TensorBoard files."""
    files = sorted(map(str, (run / "tensorboard").iterdir()))
    events = [event for file in files for event in EventFileLoader(file).Load()]
    return [(event.step, value.tag, value.tensor.float_val[0]) for event in events for value in event.summary.value]


def test_files(run):
    assert table(run)[:4] == [
        ["step", "seed", "split", "episode", "return", "length", "success"],
        ["0", "0", "train", "0", "10.000", "500", "1.0"],
        ["0", "0", "train", "1", "20.000", "500", "0.0"],
        ["0", "0", "test", "0", "7.123", "400", ""],
    ]
    assert logged(run)[0] == {"step": 50, "seed": 0, "kl": 5.0}
    assert scalars(run)[:1] == [(50, "seed0/kl", 5.0)]
    assert (0, "seed0/eval/train", 15.0) in scalars(run)


def test_a_resumed_run_appends(run):
    RunLog(run, pytest.fail, 151).close()
    log = RunLog(run, pytest.fail, 151)
    log.metrics(200, 1, {"kl": 0.5})
    log.evaluation([RESULTS[0]._replace(step=200)])
    log.close()
    assert [line["step"] for line in logged(run)] == [50, 100, 150, 200]
    assert [row[0] for row in table(run)] == ["step", *["0"] * 3, *["100"] * 3, *["150"] * 3, "200"]


def test_what_came_later_is_dropped(run):
    drop_later(run, 100, 99)
    assert [line["step"] for line in logged(run)] == [50, 100]
    assert [row[0] for row in table(run)] == ["step", "0", "0", "0"]
    drop_later(run, 10**6, 10**6)
    assert len(logged(run)) == 2 and len(table(run)) == 4


@pytest.mark.parametrize(
    ("step", "next_evaluation", "steps", "kept"),
    [
        (100, 200, 150, [0, 100]),
        (100, 100, 150, [0]),  # is due, and was under way when the run ended
        (100, 200, 100, [0]),  # is the last policy's, as before
        (120, 200, 100, [0, 100]),  # has gone further than it now shall
    ],
)
def test_what_is_logged_again_is_forgotten_first(run, step, next_evaluation, steps, kept):
    config = preset_config("dmc/walker-walk", "debug", run=str(run), steps=steps, resume=True)
    first = open_directory(config, {}, step, next_evaluation)
    RunLog(run, pytest.fail, first).close()
    assert sorted({int(row[0]) for row in table(run)[1:]}) == kept
    shown = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.step for event in shown.Scalars("seed0/kl")] == [line["step"] for line in logged(run)] == [50, 100]
    assert [event.step for event in shown.Scalars("seed0/eval/test")] == kept


def test_nothing_to_drop(tmp_path):
    drop_later(tmp_path, 100, 100)
    RunLog(tmp_path, pytest.fail).close()
    assert len(table(tmp_path)) == 1 and logged(tmp_path) == []


def test_a_torn_line_is_dropped(run):
    for name, torn in (("metrics.jsonl", '{"step": 1'), ("eval.csv", "1")):
        with (run / name).open("a") as file:
            file.write(torn)
    drop_later(run, 150, 150)
    assert [line["step"] for line in logged(run)] == [50, 100, 150]
    assert len(table(run)) == 10 and {len(row) for row in table(run)} == {7}


def test_a_full_disk_delays_what_is_logged(tmp_path, run):
    """Said once a file; once there is room, not a byte is missing, nor one there twice."""
    said, full = [], tmp_path / "full"
    log = RunLog(full, said.append)
    for file in log.files:
        file.file = Disk(file.file, room=30)
    for step in (50, 100, 150):
        log.metrics(step, 0, {"kl": step / 10})
    assert (full / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()[:30]
    for step in (0, 100, 150):
        log.evaluation([result._replace(step=step) for result in RESULTS])
    assert [str(file.path) in line and "No space left" in line for file, line in zip(
        (log.metrics_file, log.events_file, log.eval_file), said, strict=True)] == [True] * 3  # fmt: skip
    for file in log.files:
        file.file.room = 10**6
    log.close()
    assert (logged(full), table(full)) == (logged(run), table(run))
    assert scalars(full) == scalars(run) and len(scalars(run)) == 9


def test_what_never_found_room_is_told(tmp_path):
    said = []
    log = RunLog(tmp_path, said.append)
    log.metrics_file.file = Disk(log.metrics_file.file, room=30)
    log.metrics(50, 0, {"kl": 5.0})
    log.close()
    assert len(said) == 2 and "lacks its last" in said[1] and (tmp_path / "metrics.jsonl").stat().st_size == 30


def test_a_full_disk_costs_nothing_when_a_run_resumes(run, monkeypatch):
    before = logged(run), table(run)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    config = preset_config("dmc/walker-walk", "debug")
    config.save(run / "config.json")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        drop_later(run, 0, 0)
    with pytest.raises(OSError, match="No space left"):
        dataclasses.replace(config, steps=7).save(run / "config.json")
    assert (logged(run), table(run)) == before and Config.load_run(run) == config
    assert not list(run.glob(".*")), "nothing is left behind"


def test_summary(capsys):
    summary = summarise(RESULTS)
    assert summary == {
        "train": {"return": 15.0, "std": 5.0, "episodes": 2, "success": 0.5},
        "test": {"return": 7.12345, "std": 0.0, "episodes": 1},
    }
    print_summary(summary)
    output = capsys.readouterr()
    lines = [line.split() for line in output.err.splitlines()]
    assert not output.out
    assert [line[:3] for line in lines] == [["train", "return", "15.0"], ["test", "return", "7.1"]]
    assert lines[0][-2:] == ["success", "50%"] and "success" not in lines[1]


def cells_of(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
            for line in console.file.getvalue().splitlines() if "│" in line or "┃" in line]  # fmt: skip


@pytest.mark.parametrize("random_return", [3.25, None])
def test_result_table(random_return):
    head, *cells = cells_of(result_table(RESULTS, random_return))
    assert head == ["split", "return", "std", "episodes"]
    assert cells[:2] == [["train (seen videos)", "15.0", "5.0", "2"], ["test (unseen videos)", "7.1", "0.0", "1"]]
    assert cells[2:] == ([] if random_return is None else [["random policy", "3.2", "", ""]])


def test_result_table_of_several_seeds_shows_each():
    others = [result._replace(seed=2, reward=2 * result.reward) for result in RESULTS]
    head, train, test = cells_of(result_table(others + RESULTS, None))
    assert head[4:] == ["seed 0", "seed 2"]
    assert train[1:] == ["22.5", "10.9", "4", "15.0", "30.0"], "of 10, 20, 20 and 40"
    assert test[4:] == ["7.1", "14.2"]


def test_terminal_elsewhere_shows_no_bar(capsys):
    terminal = Terminal("repo on a task", 1000)
    for step in (0, 100, 200):
        terminal.show(step, KL="1.0 (3)")
    terminal.say("said")
    terminal.close()
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "repo on a task\nsaid\n")
