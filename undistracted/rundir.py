"""A run's directory: begun once, and from then on resumed."""

import dataclasses
import json
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
        return dataclasses.replace(saved, steps=config.steps, run=str(run), resume=True)
    check_unused(run)
    return complete(dataclasses.replace(config, run=str(run)))


def check_unused(run: Path) -> None:
    if checkpoint.steps(run):
        raise UserError(f"{run} already holds a run; continue it with --resume, or name another with --run")
    check_folder(run, "--run")


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
