"""A run's directory: begun once, from then on resumed, and one process's at a time."""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from pathlib import Path

from undistracted import checkpoint
from undistracted.config import Config
from undistracted.errors import UserError
from undistracted.files import check_folder, read_json, write_whole
from undistracted.logger import drop_later
from undistracted.presets import complete


def prepare(config: Config) -> Config:
    """The complete settings; on --resume those of the run, of which only the number of steps may change."""
    run = config.run_dir
    if config.resume:
        checkpoint.newest(run)
        if (run / "adapt.json").exists():  # training would move all but the encoder, too
            source = read_json(run / "adapt.json")["source"]
            raise UserError(f"{run} holds an adaptation; go on with undistracted adapt {source} --run {run} --resume")
        saved = Config.load_run(run)
        if (saved.task, saved.agent, saved.seed) != (config.task, config.agent, config.seed):
            raise UserError(
                f"{run} holds {saved.agent} on {saved.task} with seed {saved.seed}; name the same to resume it, "
                "or another --run"
            )
        check_steps(run, config.steps)
        return dataclasses.replace(saved, steps=config.steps, run=str(run), resume=True)
    config = complete(dataclasses.replace(config, run=str(run)))
    check_unused(run)
    return config


def check_steps(run: Path, steps: int) -> None:
    if steps < (done := checkpoint.steps(run)[-1]):
        raise UserError(f"{run} is at step {done:,} already; give --steps {done} or more to resume it")


def check_unused(run: Path) -> None:
    if checkpoint.steps(run):
        raise UserError(f"{run} already holds a run; continue it with --resume, or name another with --run")
    check_folder(run, "--run")


@contextlib.contextmanager
def claimed(run: Path):
    """While this lasts, no other process trains into the directory. However this one ends, the system lets go of it;
    a directory in which nothing came to be is gone again."""
    run.mkdir(parents=True, exist_ok=True)
    with open(run / ".lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UserError(
                f"process {lock.read()} trains into {run}; wait for it, end it, or name another folder with --run"
            ) from None
        except OSError:  # a file system without locks
            pass
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            if [path.name for path in run.iterdir()] == [".lock"]:
                shutil.rmtree(run)


def open_directory(config: Config, clips: dict, step: int, next_evaluation: int) -> int:
    """Write settings and clips there, and forget what an earlier process wrote after the step that the run goes on
    from, and of that step's evaluation, if it is made again. The first step of which something is forgotten."""
    run = Path(config.run)
    run.mkdir(parents=True, exist_ok=True)
    config.save(run / "config.json")
    if clips:
        write_whole(run / "videos.json", json.dumps(clips, indent=2) + "\n")
    last = step if config.resume else -1  # a run that never came to a checkpoint is begun anew
    if not config.resume:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
    again = step >= min(next_evaluation, config.steps)
    drop_later(run, last, last - again)
    return last - again + 1
