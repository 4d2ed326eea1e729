"""The source as adaptation sees it: encodings by the frozen encoder, made once and kept in half precision."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from undistracted import checkpoint
from undistracted.adapt.align import spread
from undistracted.config import Config
from undistracted.data import by_seed
from undistracted.errors import UserError
from undistracted.files import read_arrays
from undistracted.learner import Learner
from undistracted.rollout import Environments, episode_seeds

SLAB = 1_000  # frames of each seed that are encoded at once
FILE = "adaptation.safetensors"  # of an adapted run: encodings of the source, and pairs


class FrozenEncoder:
    """A learner's encoder as it is now: frames (S, N, 64, 64, 3) to encodings (S, N, x), in half precision.

    `heed` is called now and then, and may end it.
    """

    def __init__(self, learner: Learner, heed: Callable = lambda: None):
        self.encoder, self.heed = learner.policy_copy().model.encoder, heed

        def encode_one(encoder, frames):
            return encoder(frames).astype(jnp.float16)

        seeds = learner.seeds
        self._encode = jax.jit(seeds.spread(seeds.map(encode_one), (0, 0)))

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        slabs = []
        for start in range(0, frames.shape[1], SLAB):
            self.heed()
            slab = np.asarray(frames[:, start : start + SLAB])
            padding = [(0, 0), (0, SLAB - slab.shape[1])] + [(0, 0)] * 3  # one size, compiled once
            slabs.append(np.asarray(self._encode(self.encoder, np.pad(slab, padding)))[:, : slab.shape[1]])
        return np.concatenate(slabs, 1)


def source_encodings(run: Path, config: Config, learner: Learner, encode: FrozenEncoder, collect: int) -> np.ndarray:
    """Encodings (S, N, x) of what the run has seen: its saved replay, or as many steps of its policy as asked for.

    An adapted run hands on those of its own source: they are what dynamics and policy were trained on.
    """
    if collect:
        return collected(config, learner, encode, collect)
    if (run / FILE).exists():
        return read_arrays(run / FILE)["source"]
    _, end = checkpoint.counters_of(run)["rows"] or (0, 0)
    files = [path for _, stop, path in checkpoint.chunks(run / "checkpoints" / "replay") if stop <= end]
    if not files:
        raise UserError(
            f"{run} was saved without its replay (--no-save-replay), or it was removed; let its policy collect one: "
            "--collect-source 50000"
        )
    frames = (read_arrays(path)["obs"] for path in files)  # (S, K, E, ...), one file in memory at a time
    return np.concatenate([encode(x.reshape(len(x), -1, *x.shape[3:])) for x in frames], 1)


def collected(config: Config, learner: Learner, encode: FrozenEncoder, steps: int) -> np.ndarray:
    """By the policy as it explores, in the look that it was trained in; frames are not kept."""
    seeds = [seed for seed in range(config.seeds) for _ in range(config.envs)]
    envs = Environments([config.env("train", seed) for seed in seeds], config.processes)
    sequences = [[config.seed + seed, 3, i] for i, seed in enumerate(seeds)]
    frames, encodings, carry = [], [], learner.initial_carry(config.envs)
    try:
        row = envs.reset(episode_seeds(sequences))
        for count in range(-(-steps // config.envs)):
            row = by_seed(row, config.seeds)
            frames.append(row.obs)
            if len(frames) * config.envs >= SLAB:
                encodings.append(encode(np.concatenate(frames, 1)))
                frames = []
            action, carry = learner.act(carry, row, count)
            envs.send(np.asarray(action).reshape(envs.count, -1))
            row, _ = envs.receive()
    finally:
        envs.close()
    rest = [encode(np.concatenate(frames, 1))] if frames else []
    return np.concatenate(encodings + rest, 1)


def relative_distance(x_s, x_t):
    """Mean squared distance of paired encodings, as a part of the source's spread: 1 is no better than a constant."""
    x_s = x_s.astype(jnp.float32)
    return ((x_s - x_t) ** 2).mean() / spread(x_s)
