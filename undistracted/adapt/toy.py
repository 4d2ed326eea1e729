"""The paper's 2-D example of why a support constraint: what each objective makes of an encoder that saw too little.

Latents of training fill a square, those of testing only half of it, as after too little exploration. Both are emitted
as 0.025 e^x. The encoder of training is perfect; that of testing is learned by the functions of `align.py`, alone, with
dynamics consistency (distances between latents are kept) and with calibration (a few latents are known, from all over
the half, or from a corner of it). First the encoder learns what is added, while f, tau and lambda learn to judge it;
then the alignment joins, and either agrees with what was found or fights it.
"""

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from undistracted.adapt.align import METHODS, Aligner, Rates, Rows
from undistracted.adapt.networks import Perceptron
from undistracted.errors import UserError
from undistracted.files import check_folder

SIDE, GAIN = 6.0, 0.025
HALF, CORNER = jnp.array([SIDE / 2, SIDE]), 1 / 3  # of testing; the upper right part of it, a third a side
CELLS = jnp.stack(jnp.meshgrid(jnp.arange(3.0), jnp.arange(6.0)), -1).reshape(-1, 2)  # one calibration example in each
BATCH, HELD_OUT = 128, 1_000
NEIGHBOURS = 48  # rows whose mutual distances are kept
RATES = Rates(encoder=1e-3, tau=2e-3, f=2e-3, multiplier=5e-3)  # networks are small and start from nothing
SIZES = dict(hidden=32, depth=2, code=16)
GAME = dict(penalty=0.1, budget=1.0)  # in two dimensions f must be sharper than in a thousand
JOINS = 3 / 8  # of the steps are over when the alignment joins
AVERAGE = 2e-3  # rate at which the encoder's average follows it: games go round and round


@dataclass(frozen=True)
class ToyConfig:
    """Draw the paper's 2-D example."""

    steps: int = 4_000
    """Alternations of each panel."""
    seed: int = 0
    """Of networks and samples."""
    out: str = "."
    """Folder of toy.png and toy.json."""


class Added(NamedTuple):
    """What is added to an alignment, as weights."""

    dynamics: float = 0.0
    calibration: float = 0.0
    skewed: float = 0.0  # 1 where the calibration examples lie in a corner


ADDED = {
    "alone": Added(),
    "dynamics": Added(dynamics=1.0),
    "calibration": Added(calibration=0.5),
    "skewed calibration": Added(calibration=0.5, skewed=1.0),
    "skewed calibration + dynamics": Added(dynamics=1.0, calibration=0.5, skewed=1.0),
}


METHOD_NAMES = {"distribution": "distribution matching", "support": "support constraint"}


def emit(x):
    return GAIN * jnp.exp(x)


def train_latents(key, n: int):
    return jax.random.uniform(key, (n, 2), maxval=SIDE)


def test_latents(key, n: int):
    """The left half of the square."""
    return jax.random.uniform(key, (n, 2)) * HALF


def calibration_latents(key, skewed):
    """A few of the test's latents, evenly from all over them or from a corner."""
    x = HALF * (CELLS + jax.random.uniform(key, CELLS.shape)) / (CELLS.max(0) + 1)
    return jnp.where(skewed, (1 - CORNER) * HALF + CORNER * x, x)


def distance_violation(x, x_t):
    """How far the distances between rows of x_t are from those of x: (d^2 - D^2)^2 / 4 D^2, about (d - D)^2."""

    def squares(x):
        return ((x[:, None] - x[None]) ** 2).sum(-1)

    return ((squares(x_t) - squares(x)) ** 2 / (squares(x) + 0.1)).mean() / 4


@partial(jax.jit, static_argnames=("method", "steps"))
def recover(key, latents, added: Added, method: str, steps: int):
    """What an encoder of the test, trained by `steps` alternations, makes of the given latents."""
    encoder_key, pair_key, init_key, loop_key = jax.random.split(key, 4)
    pairs = calibration_latents(pair_key, added.skewed)

    def aligner(joined):
        # Distances know no left and right: examples come first, or the latents unfold the wrong way round.
        dynamics = added.dynamics * jnp.where(joined, 1.0, 0.1)
        weights = dict(alignment=joined, calibration=added.calibration, dynamics=dynamics)
        return Aligner(METHODS[method], RATES, **weights, **GAME)

    def step(state, row):
        (encoder, players, average), (i, key) = state, row
        source_key, target_key, key = jax.random.split(key, 3)
        x = test_latents(target_key, BATCH)
        rows = Rows(train_latents(source_key, BATCH), emit(x), pairs, emit(pairs))

        def violation(x_t):
            return distance_violation(x[:NEIGHBOURS], x_t[:NEIGHBOURS])

        joined = jnp.float32(i > JOINS * steps)
        encoder, players, _ = aligner(joined).step(encoder, players, rows, key, violation)
        rate = jnp.maximum(AVERAGE, 1 / (i + 1))
        average = jax.tree.map(lambda mean, new: mean + rate * (new - mean), average, encoder)
        return (encoder, players, average), None

    encoder = Perceptron(2, 64, 2, 2, encoder_key, jax.nn.elu)
    state = encoder, aligner(0.0).init(encoder, 2, init_key, **SIZES), encoder
    rows = jnp.arange(steps, dtype=jnp.float32), jax.random.split(loop_key, steps)
    return jax.lax.scan(step, state, rows)[0][2](emit(latents))


def recover_panel(method: str, added: str, steps: int, seed: int):
    """Held-out latents, what the panel's encoder makes of them, and the mean distance between the two."""
    key, held_out_key = jax.random.split(jax.random.key(seed))
    truth = test_latents(held_out_key, HELD_OUT)
    weights = jax.tree.map(jnp.float32, ADDED[added])
    found = recover(key, truth, weights, method, steps)
    return np.asarray(truth), np.asarray(found), float(jnp.linalg.norm(found - truth, axis=-1).mean())


def toy(options: ToyConfig) -> dict:
    """Train all panels, draw them in one figure, and write the mean distances to the true latents."""
    for name in ("steps", "seed"):
        if not 0 <= getattr(options, name) < 2**32:
            raise UserError(f"--{name} is {getattr(options, name)}; it must lie between 0 and {2**32 - 1}")
    out, results, errors = Path(options.out), {}, {}
    check_folder(out, "--out")
    for method in METHOD_NAMES:
        for added in ADDED:
            results[method, added] = recover_panel(method, added, options.steps, options.seed)
            errors.setdefault(method, {})[added] = round(results[method, added][2], 3)
            print(f"{method:12s} {added:30s} error {results[method, added][2]:.2f}", file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    (out / "toy.json").write_text(json.dumps({"steps": options.steps, "seed": options.seed, "error": errors}, indent=2))
    draw(results, options.seed, out / "toy.png")
    print(f"figure: {out / 'toy.png'}", file=sys.stderr)
    return errors


def draw(results: dict, seed: int, path: Path) -> None:
    """The truth, then a panel each: latents in the colour of their true place, the training's square as a frame, and
    the calibration examples as crosses."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    truth = next(iter(results.values()))[0]
    half = np.asarray(HALF)
    colours = np.stack([truth[:, 0] / half[0], truth[:, 1] / half[1], np.full(len(truth), 0.5)], 1)
    pair_key = jax.random.split(jax.random.split(jax.random.key(seed))[0], 4)[1]
    figure, axes = pyplot.subplots(2, 1 + len(ADDED), figsize=(15, 5.6), sharex=True, sharey=True)
    for axis in axes.flat:
        axis.add_patch(pyplot.Rectangle((0, 0), SIDE, SIDE, fill=False, color="gray"))
        axis.set(xlim=(-1, SIDE + 1), ylim=(-1, SIDE + 1), aspect="equal")
    square = np.asarray(train_latents(jax.random.key(seed), HELD_OUT))
    axes[0, 0].scatter(*square.T, s=3, c="lightgray")
    axes[0, 0].set_title("latents of training", fontsize=9)
    axes[1, 0].scatter(*truth.T, s=3, c=colours)
    axes[1, 0].set_title("latents of testing", fontsize=9)
    for row, method in zip(axes[:, 1:], METHOD_NAMES, strict=True):
        for axis, (name, added) in zip(row, ADDED.items(), strict=True):
            _, found, error = results[method, name]
            axis.scatter(*found.T, s=3, c=colours)
            if added.calibration:
                axis.scatter(
                    *np.asarray(calibration_latents(pair_key, added.skewed)).T, s=14, c="k", marker="x", lw=0.8
                )
            axis.set_title(f"{name}\nerror {error:.2f}", fontsize=9)
        row[0].set_ylabel(METHOD_NAMES[method], fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
