"""Filtering by kernels of our own: what `rssm.filter_sequences` computes, all steps in one kernel each way.

XLA runs a step as nine small kernels that wait for each other, and reads all weights at each. Here a few blocks of
threads share the weights between them, each holding its own for all steps.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from undistracted import parts
from undistracted.dists import Normal
from undistracted.kernels import launch
from undistracted.kernels.weights import apart, columns, of_one_seed, pack, packed, padded, up
from undistracted.rssm import Latent
from undistracted.slopes import layer_gradient

CLUSTER, WARPS, TILE = 4, 8, 16  # as in filter.cuh


class Sizes(NamedTuple):
    """Belief, state, hidden units, steps, rows."""

    D: int
    Z: int
    N: int
    T: int
    B: int

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes of a block, forward and back: rows, weights of small products, its share of the belief's gates."""
        D, Z, N, share = self.D, self.Z, self.N, up(self.D, 8 * CLUSTER) // CLUSTER
        gates, states = 3 * up(D, 16) * share, up(Z, 8)
        forward = 2 * apart(N) + 2 * apart(D) + apart(Z), up(Z, 16) * N + up(N, 16) * 2 * states
        back = 8 * apart(D) + apart(N) + apart(2 * states), 2 * states * N + up(N, 16) * states
        return tuple((TILE * rows + weights + gates) * 2 for rows, weights in (forward, back))


def fits(sizes: Sizes) -> bool:
    """Whether the kernels are written for such sizes: a warp has at most one tile of 8 columns of a share."""
    widest = max(sizes.D, sizes.N, sizes.Z * CLUSTER)
    whole = sizes.D % 8 == 0 and sizes.N % 8 == 0 and sizes.Z % 2 == 0
    return whole and widest <= 8 * WARPS * CLUSTER and max(sizes.memory) <= launch.SHARED_MEMORY


class Kernels:
    """The two kernels filter_steps.cu and unfilter_steps.cu for one set of sizes, as functions of arrays (S, ...)."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes

    def launch(self, name: str, widths: list, dtypes: list, memory: int, args):
        T, B, seeds = self.sizes.T, self.sizes.B, args[0].shape[0]
        outs = [jax.ShapeDtypeStruct((seeds, T, B, width), dtype) for width, dtype in zip(widths, dtypes, strict=True)]
        grid = -(-B // TILE) * CLUSTER, seeds
        source = launch.constants(**self.sizes._asdict()) + launch.text("tiles.cuh", "filter.cuh", f"{name}.cu")
        return launch.kernel_call(name, source, outs, grid, WARPS * 32, memory)(*args)

    def forward(self, *args):
        """(products with action and encoding, noise, what is kept, weights, biases) -> belief, state, mean, deviation,
        and inputs, gates and posterior's layer, as `backward` takes them."""
        D, Z, N, *_ = self.sizes
        dtypes = [jnp.float32] * 4 + [jnp.bfloat16] * 3
        return self.launch("filter_steps", [D, Z, Z, Z, N, 4 * D, N], dtypes, self.sizes.memory[0], args)

    def backward(self, *args):
        """(gradients by belief, state, mean, deviation, noise, what is kept, belief, deviation, inputs, gates,
        posterior's layer, weights) -> gradients by the sums of inputs, gates' parts of inputs and of belief,
        posterior's layer, out."""
        D, Z, N, *_ = self.sizes
        return self.launch(
            "unfilter_steps", [N, 3 * D, 3 * D, N, 2 * Z], [jnp.bfloat16] * 5, self.sizes.memory[1], args
        )


# --- weights ---------------------------------------------------------------------------------------------------------


def shares(weight: np.ndarray) -> list:
    """A weight's columns, as the blocks of a cluster share them."""
    return np.split(columns(weight, 1, 8 * CLUSTER), CLUSTER, -1)


def gate_shares(gates: np.ndarray) -> list:
    """The same of three gates: a tile of each gate's columns next to each other."""
    each = [
        np.stack(share).reshape(3, len(gates), -1, 8) for share in zip(*map(shares, np.split(gates, 3, 1)), strict=True)
    ]
    return [share.transpose(1, 2, 0, 3).reshape(len(gates), -1) for share in each]


def arranged(common: list, own: list) -> np.ndarray:
    """First what all blocks need, then each block's own."""
    return np.concatenate(
        [pack(weight) for weight in [*common, *(w for block in zip(*own, strict=True) for w in block)]]
    )


def arrange_forward(inputs, x, h, hidden, out):
    return arranged([inputs, columns(out, 2)], [gate_shares(h), gate_shares(x), shares(hidden)])


def arrange_backward(inputs, x, h, hidden, out):
    (xr, xu, xn), (hr, hu, hn) = ([gate.T for gate in np.split(weight, 3, 1)] for weight in (x, h))
    own = [shares(weight) for weight in (hr, hu, hn, xn, xr, xu, hidden.T)]
    return arranged([columns(out, 2).T, columns(inputs.T, 1)], own)


# --- filtering -------------------------------------------------------------------------------------------------------


def filter_sequences(rssm, action, x, first, forget, key) -> tuple[Latent, Normal]:
    """What `rssm.filter_sequences` returns."""
    (belief, state), gru = rssm.sizes, rssm.gru
    inputs, hidden, out = rssm.inputs, rssm.posterior_hidden, rssm.posterior_out
    noise = parts.normal(key, (*first.shape, state))
    keep = 1 - jnp.stack([forget, first], -1).astype(jnp.float32)
    weights = inputs.weight[:state], gru.inputs.weight, gru.hidden.weight, hidden.weight[:belief], out.weight
    biases = inputs.bias, gru.inputs.bias, gru.hidden.bias, hidden.bias, out.bias
    # In bfloat16 nothing of them is lost: products are rounded to it, and biases are added later.
    offsets = inputs.product(action, slice(state, None)), hidden.product(x, slice(belief, None))
    offsets = [offset.astype(jnp.bfloat16) for offset in offsets]
    kernels = Kernels(Sizes(belief, state, inputs.bias.size, *first.shape))
    belief, state, mean, deviation = _filter(kernels, weights, biases, offsets, noise, keep)
    return Latent(belief, state), Normal(mean, deviation)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _filter(kernels: Kernels, weights, biases, offsets, noise, keep):
    return _forward(kernels, weights, biases, offsets, noise, keep)[0]


def _forward(kernels, weights, biases, offsets, noise, keep):
    inputs, x, h, hidden, out = biases
    gates = kernels.sizes.D * 2
    biases = [inputs, x[:gates] + h[:gates], x[gates:], h[gates:], hidden]
    biases = jnp.concatenate([*biases, padded(out, 2)])
    outputs = of_one_seed(kernels.forward)(*offsets, noise, keep, packed(arrange_forward, weights), biases)
    return tuple(outputs[:4]), (weights, noise, keep, *outputs)


def _backward(kernels, residuals, cotangents):
    weights, noise, keep, belief, state, _, deviation, inputs, gates, hidden = residuals
    known = noise, keep, belief, deviation, inputs, gates, hidden
    sums = of_one_seed(kernels.backward)(*cotangents, *known, packed(arrange_backward, weights))
    belief, state = belief.astype(jnp.bfloat16), state.astype(jnp.bfloat16)
    old_belief, old_state = (last_rows(x, keep[..., i : i + 1]) for i, x in enumerate((belief, state)))
    pairs = zip((old_state, inputs, old_belief, belief, hidden), sums, strict=True)
    of_weights, of_biases = zip(*(layer_gradient(x, by) for x, by in pairs), strict=True)
    return of_weights, of_biases, [sums[0], sums[3]], jnp.zeros_like(noise), jnp.zeros_like(keep)


def last_rows(x, keep):
    """Of each step what it keeps of the last; before the first there is nothing."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1] * keep[1:].astype(x.dtype)])


_filter.defvjp(_forward, _backward)
