"""The gradient of a wide layer's weight and bias over all rows of a dream, by weigh.cu."""

import jax
import jax.numpy as jnp

from undistracted.kernels import launch
from undistracted.kernels.weights import COLUMNS, of_one_seed, up

THREADS, STAGE = 320, 32  # as in weigh.cu


def weigh(x, sums, scale=None, skip: int = 0):
    """From a layer's inputs (steps, rows, K), of which the first `skip` steps do not count, and the gradient of its
    sums (H, rows, M), or what that is times a number (H, rows) for each."""
    scaled = scale is not None

    def kernel(x, sums, scale):
        seeds, steps, rows, inputs = x.shape
        many, width = sums.shape[1] * rows, sums.shape[-1]
        shares = max(launch.PROCESSORS // (2 * seeds), 1)  # all blocks run at once
        sizes = dict(K=inputs, M=width, ROWS_X=steps * rows, SKIP=skip * rows, ROWS_S=many)
        source = launch.constants(**sizes, SHARES=shares, SCALED=int(scaled)) + launch.text("weigh.cu")
        half, tiles = up(up(inputs + 1, 16) // 16, 2) // 2 * 16, up(width, 8 * COLUMNS) // 8
        memory = 2 * STAGE * (up(half, 32) + 8 + tiles * 8 + 8 + tiles % 2 * 8) * 2
        out = [jax.ShapeDtypeStruct((seeds, shares, inputs + 1, width), jnp.float32)]
        (parts,) = launch.kernel_call("weigh", source, out, (shares, seeds, 2), THREADS, memory)(x, sums, scale)
        total = parts.sum(1)
        return total[:, :-1], total[:, -1]

    return of_one_seed(kernel)(x, sums, scale if scaled else jnp.zeros(1))
