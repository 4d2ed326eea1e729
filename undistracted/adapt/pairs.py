"""Pairs of pictures of one state in two looks: driven through both at once, or recorded elsewhere and read from a file.

Of every seed, pairs are (S, P, ...); the target's side of trajectories is experience in the new look, too.
"""

import zipfile
import zlib
from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import jax
import numpy as np

from undistracted.config import Config
from undistracted.data import IMAGE, Batch, by_seed
from undistracted.envs.paired import make_pair
from undistracted.errors import UserError
from undistracted.learner import Learner
from undistracted.rollout import Environments, episode_seeds

HELD_OUT_SHARE, HELD_OUT_LEAST = 0.1, 2  # of the pairs in a file, from its end; one alone has no spread


class Pairs(NamedTuple):
    source: np.ndarray  # (S, P, 64, 64, 3)
    target: np.ndarray


class Gathered(NamedTuple):
    calibration: Pairs | None
    held_out: Pairs | None
    rows: Batch | None  # (S, R, ...): the target's side of the calibration as experience


def gather_pairs(options, source: Config, target: Config, learner: Learner, heed: Callable) -> Gathered:
    """As the settings of an adaptation ask for; `heed` is called now and then, and may end it."""
    if options.pairs:
        return Gathered(*read_pairs(options.pairs, source.seeds), None)
    count = options.calibration
    if not count + options.held_out:
        return Gathered(None, None, None)
    trajectories = drive_pairs(source, target, learner, count + options.held_out, options.calibration_policy, heed)
    calibration, held_out = join([t[:count] for t in trajectories]), join([t[count:] for t in trajectories])
    rows = calibration and calibration._replace(obs=split(calibration).target)
    return Gathered(split(calibration), split(held_out), rows)


def drive_pairs(
    source: Config, target: Config, learner: Learner, count: int, policy: str, heed: Callable = lambda: None
) -> list[list[Batch]]:
    """Of each seed, `count` trajectories (T, ...) of six channels; the learner acts on what the source shows."""
    each, seeds = min(count, source.envs), source.seeds
    looks = [{"source": source.env("train", s), "target": target.env("train", s)} for s in range(seeds)]
    level, gymnasium.logger.min_level = gymnasium.logger.min_level, 100  # looks that part are no worker's traceback
    envs = Environments([look for look in looks for _ in range(each)], source.processes, make_pair)
    try:
        sequences = [[source.seed + s, 2, i] for s in range(seeds) for i in range(each)]
        rng, carry = np.random.default_rng([source.seed, 2]), learner.initial_carry(each)
        rows = [envs.reset(episode_seeds(sequences))]
        played = np.zeros(envs.count, int)
        while played.min() * each < count:
            heed()
            if policy == "random":
                action = rng.uniform(-1, 1, (envs.count, envs.action_size))
            else:
                row = by_seed(rows[-1], seeds)
                row = row._replace(obs=row.obs[..., :3])
                action, carry = learner.act(carry, row, 0, learner.state.policy)
            envs.send(np.asarray(action).reshape(envs.count, -1))
            row, episodes = envs.receive()
            rows.append(row)
            played[[episode.env for episode in episodes]] += 1
    finally:
        gymnasium.logger.min_level = level
        envs.close()
    columns = [trajectories(rows, env) for env in range(envs.count)]
    turns = [zip(*columns[s * each : (s + 1) * each], strict=False) for s in range(seeds)]  # every column's first, ...
    return [[trajectory for turn in each_turn for trajectory in turn][:count] for each_turn in turns]


def trajectories(rows: list[Batch], env: int) -> list[Batch]:
    """One environment's rows, cut at the first ones; the last piece may not be complete."""
    column = jax.tree.map(lambda *x: np.stack(x), *[jax.tree.map(lambda x: x[env], row) for row in rows])
    cuts = [*np.flatnonzero(column.first), len(rows)]
    return [jax.tree.map(lambda x: x[i:j], column) for i, j in zip(cuts[:-1], cuts[1:], strict=True)]  # noqa: B023


def join(trajectories: list[list[Batch]]) -> Batch | None:
    """Each seed's trajectories one after the other, (S, R, ...), as long as the shortest seed's."""
    if not trajectories[0]:
        return None
    seeds = [jax.tree.map(lambda *x: np.concatenate(x), *each) for each in trajectories]
    length = min(len(seed.first) for seed in seeds)
    return jax.tree.map(lambda *x: np.stack([each[:length] for each in x]), *seeds)


def split(rows: Batch | None) -> Pairs | None:
    return rows and Pairs(rows.obs[..., :3], rows.obs[..., 3:])


def columns(rows: Batch, envs: int) -> Batch:
    """A stream of rows (S, R, ...) as columns of a replay (S, R / E, E, ...), each going on where the last ended."""
    length = rows.first.shape[1] // envs

    def fold(x):
        return x[:, : envs * length].reshape(len(x), envs, length, *x.shape[2:]).swapaxes(1, 2)

    return jax.tree.map(fold, rows)


def read_pairs(path: str, seeds: int) -> tuple[Pairs, Pairs]:
    """Pairs for calibration, and the last tenth for measuring, from a file; the same for every seed."""
    try:
        if not zipfile.is_zipfile(path):  # np.load would try other formats, and advise to trust the file
            open(path, "rb").close()
            raise ValueError("it is no .npz")
        with np.load(path, allow_pickle=False) as file:
            pairs = Pairs(file["source"], file["target"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as e:
        raise UserError(f"cannot read pairs from '{path}': {e}; it must be an .npz with `source` and `target`") from e
    for name, frames in pairs._asdict().items():
        if (
            frames.dtype != np.uint8
            or frames.shape[1:] != IMAGE
            or not len(pairs.source) == len(frames) > HELD_OUT_LEAST
        ):
            raise UserError(
                f"`{name}` in '{path}' is {frames.dtype} {frames.shape}; it must be uint8 (N, 64, 64, 3), N >= 3 the "
                "same for `source` and `target`"
            )
    pairs = Pairs(*(np.broadcast_to(frames, (seeds, *frames.shape)) for frames in pairs))
    kept = len(pairs.source[0]) - max(HELD_OUT_LEAST, round(HELD_OUT_SHARE * len(pairs.source[0])))
    return Pairs(*(x[:, :kept] for x in pairs)), Pairs(*(x[:, kept:] for x in pairs))
