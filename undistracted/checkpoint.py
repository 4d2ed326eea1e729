"""Checkpoints: arrays as safetensors, counters as JSON, nothing that could run code when read back.

    checkpoints/000050000/state.safetensors   parameters, dual variable, Adam's moments
    checkpoints/000050000/priority.safetensors   of the replay's windows, where they are drawn by priority
    checkpoints/000050000/counters.json       steps, updates, random streams, what is in the replay
    checkpoints/replay/000000000-000003125.safetensors   rows of the replay, each written once

A checkpoint appears under its name only when it is whole, and the one before is removed only after that.
"""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from undistracted import replay as ring
from undistracted.config import Config
from undistracted.data import Batch
from undistracted.errors import UserError
from undistracted.files import read_arrays, read_json
from undistracted.learner import Learner

CHUNK = 1_000  # rows per read from the device: bounds the host memory that loading needs


def save(run: Path, learner: Learner, step: int, counters: dict, *, replay: bool) -> None:
    """Write a checkpoint; on a full disk, leave the previous one untouched and say so."""
    folder = run / "checkpoints"
    partial, final = folder / ".partial", folder / f"{step:09d}"
    if step in steps(run):
        return  # nothing has been learned since
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_file(named(jax.device_get(learner.state)), partial / "state.safetensors")
        counters |= {"step": step, "updates": learner.updates, "action_size": learner.agent.action_size}
        counters["rows"] = save_replay(folder / "replay", learner) if replay else None
        if replay and learner.replay.priority is not None:
            save_file({"priority": jax.device_get(learner.replay.priority)}, partial / "priority.safetensors")
        (partial / "counters.json").write_text(json.dumps(counters, indent=2) + "\n")
        shutil.rmtree(final, ignore_errors=True)  # not whole
        os.replace(partial, final)
    except (OSError, SafetensorError) as e:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"cannot write a checkpoint to {folder}: {e}; the last whole one is kept") from e
    for old in steps(run):
        if old != step:
            shutil.rmtree(folder / f"{old:09d}")
    for _, last, path in chunks(folder / "replay"):
        if replay and last <= counters["rows"][0]:
            path.unlink()


def save_replay(folder: Path, learner: Learner) -> list[int]:
    """Append what was written since the last checkpoint."""
    folder.mkdir(exist_ok=True)
    end = int(np.asarray(learner.replay.written)[0])
    begin = max(0, end - learner.replay.capacity)
    saved = max([begin, *(last for _, last, _ in chunks(folder) if last <= end)])
    read = jax.jit(jax.vmap(ring.read, (0, None)))
    for start in range(saved, end, CHUNK):
        stop = min(start + CHUNK, end)
        rows = jax.device_get(read(learner.replay, np.arange(start, stop)))
        partial = folder / ".partial"
        save_file(rows._asdict(), partial)
        os.replace(partial, folder / f"{start:09d}-{stop:09d}.safetensors")
    return [begin, end]


def load(run: Path, learner: Learner) -> dict:
    """Fill the learner from the newest checkpoint, replay included, and return the counters."""
    counters = load_state(run, learner)
    if counters["rows"] is None:
        raise UserError(f"{run} was saved without its replay (--no-save-replay), so it cannot be resumed")
    _, end = counters["rows"]
    extend = jax.jit(jax.vmap(ring.extend), donate_argnums=0)
    first = None
    for start, stop, path in chunks(run / "checkpoints" / "replay"):
        if stop > end:
            path.unlink()  # written for a checkpoint that was never completed
            continue
        if first is None:
            first = start
            learner.replay = learner.replay._replace(written=learner.replay.written + start)
        learner.replay = extend(learner.replay, Batch(**read_arrays(path)))
    if int(learner.replay.written[0]) != end:
        raise UserError(f"files are missing in {run / 'checkpoints' / 'replay'}, so it cannot be resumed")
    if learner.replay.priority is not None:
        priority = read_arrays(run / "checkpoints" / f"{newest(run):09d}" / "priority.safetensors")["priority"]
        learner.replay = learner.replay._replace(priority=learner.home.put(priority))
    return counters


def load_state(run: Path, learner: Learner) -> dict:
    """Parameters, moments and counters of the newest checkpoint."""
    folder = run / "checkpoints" / f"{newest(run):09d}"
    arrays, template = read_arrays(folder / "state.safetensors"), named(learner.state)
    # An adapted run also keeps what only adapting needs.
    arrays = {name: x for name, x in arrays.items() if name in template or not name.startswith(".players")}
    if {k: v.shape for k, v in arrays.items()} != {k: v.shape for k, v in template.items()}:
        raise UserError(f"{folder} does not fit the settings in {run / 'config.json'}")
    leaves = [jax.numpy.asarray(arrays[name]) for name in template]
    learner.state = learner.seeds.put(jax.tree.unflatten(jax.tree.structure(learner.state), leaves))
    counters = counters_of(run)
    learner.updates = counters["updates"]
    return counters


def load_learner(run: Path, config: Config) -> tuple[Learner, int]:
    """A learner for acting only, with the parameters of the newest checkpoint, and the checkpoint's step."""
    counters = counters_of(run)
    learner = Learner(config, counters["action_size"], replay=False)
    load_state(run, learner)
    return learner, counters["step"]


def counters_of(run: Path) -> dict:
    """What the newest checkpoint keeps beside arrays."""
    return read_json(run / "checkpoints" / f"{newest(run):09d}" / "counters.json")


def named(tree) -> dict:
    """The leaves of a pytree by their path."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def chunks(folder: Path) -> list[tuple[int, int, Path]]:
    files = sorted(folder.glob("*-*.safetensors"))
    return [(*map(int, path.stem.split("-")), path) for path in files]


def steps(run: Path) -> list[int]:
    """Steps of the whole checkpoints, oldest first."""
    folders = (run / "checkpoints").glob("[0-9]*")
    return sorted(int(path.name) for path in folders if (path / "counters.json").exists())


def newest(run: Path) -> int:
    found = steps(run)
    if not found:
        raise UserError(f"no checkpoint in {run}; train it first: undistracted train TASK --run {run}")
    return found[-1]
