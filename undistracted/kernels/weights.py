"""Weights in the order in which the kernels take them, and seeds.

A weight (K, N) is cut into slabs of 16 inputs, each into tiles of 8 outputs, filled up with zeros. In a tile, thread
4 n + q of a warp holds output n and the inputs 2q, 2q + 1, 2q + 8, 2q + 9: so the tensor cores want it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def apart(x: int) -> int:
    """How far apart rows of shared memory lie, as in tiles.cuh."""
    return up(x, 16) + 8


def pack(weight: np.ndarray) -> np.ndarray:
    """One weight (K, N), as a vector."""
    inputs, outputs = weight.shape
    weight = np.pad(weight, ((0, -inputs % 16), (0, -outputs % 8)))
    slabs, tiles = weight.shape[0] // 16, weight.shape[1] // 8
    cut = weight.reshape(slabs, 2, 4, 2, tiles, 8)  # slab, half, q, which of two, tile, n
    return cut.transpose(0, 4, 5, 2, 1, 3).ravel()


def dealt(width: int) -> np.ndarray:
    """Which column stands at each place of a warp's tiles: in four tiles next to each other, thread q of a row, whose
    places are 2q and 2q + 1 of each, has eight neighbours. Tiles that are left are as they were."""
    fours = np.arange(width // 32 * 32).reshape(-1, 4, 4, 2)  # four tiles, q, tile, which of two
    return np.concatenate([fours.swapaxes(1, 2).ravel(), np.arange(fours.size, width)])


def deal(weight: np.ndarray, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> np.ndarray:
    """A weight for rows of a warp (rows.cuh), packed: its inputs and outputs, in parts of these widths, each filled
    up to whole tiles, stand where a warp has them."""
    for parts in (inputs, outputs):  # each turn deals the rows, and turns the weight
        split = np.split(weight, np.cumsum(parts)[:-1])
        split = [np.pad(part, ((0, -len(part) % 8), (0, 0))) for part in split]
        weight = np.concatenate([part[dealt(len(part))] for part in split]).T
    return pack(weight)


def columns(weight: np.ndarray, parts: int, multiple: int = 8) -> np.ndarray:
    """The columns in `parts` equal parts, each filled up to a multiple."""
    split = np.split(weight, parts, -1)
    wide = [(0, 0)] * (weight.ndim - 1) + [(0, -split[0].shape[-1] % multiple)]
    return np.concatenate([np.pad(part, wide) for part in split], -1)


def packed(arrange: Callable[..., np.ndarray], weights):
    """All weights of a kernel as one vector. `arrange` takes arrays apart and puts them together, by moving elements
    and filling up with zeros alone; so it is asked once where everything goes, and weights are moved by one gather: one
    by one they would take longer to pack than to use."""
    ends = np.cumsum([1] + [weight.size for weight in weights])  # place 0 is a zero
    places = [np.arange(a, b).reshape(w.shape) for a, b, w in zip(ends[:-1], ends[1:], weights, strict=True)]
    flat = jnp.concatenate([jnp.zeros(1), *[jnp.ravel(weight) for weight in weights]])
    return flat.astype(jnp.bfloat16)[arrange(*places).astype(np.int32)]


def padded(bias, parts: int = 1):
    """A bias in equal parts, each filled up to eights."""
    return jnp.concatenate([jnp.pad(part, (0, -part.size % 8)) for part in jnp.split(bias, parts)])


def of_one_seed(kernel):
    """A kernel of arrays (S, ...) as a function of one seed's, which a vmap calls once for all seeds."""

    @jax.custom_batching.custom_vmap
    def one(*args):
        return jax.tree.map(lambda x: x[0], kernel(*[x[None] for x in args]))

    @one.def_vmap
    def all_seeds(seeds, mapped, *args):
        args = [x if m else jnp.broadcast_to(x, (seeds, *x.shape)) for x, m in zip(args, mapped, strict=True)]
        out = kernel(*args)
        return out, jax.tree.map(lambda _: True, out)

    return one
