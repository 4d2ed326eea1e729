"""The gradient of a wide layer's weight and bias over all rows of a dream, by weigh.cu."""

import jax
import jax.numpy as jnp

from undistracted.kernels import launch
from undistracted.kernels.weights import of_one_seed, up

STAGE, STAGES, CLUSTER = 32, 6, 2  # two blocks of a cluster find room wherever two blocks do


def weigh(x, sums, scale=None, skip: int = 0):
    """From a layer's inputs (steps, rows, K), of which the first `skip` steps do not count, and the gradient of its
    sums (H, rows, M), or what that is times a number (H, rows) for each."""
    scaled = scale is not None

    def kernel(x, sums, scale):
        seeds, steps, rows, inputs = x.shape
        many, width = sums.shape[1] * rows, sums.shape[-1]
        down, across = warps(inputs, width)
        # All blocks run at once, in whole clusters.
        most = launch.PROCESSORS // seeds // CLUSTER * CLUSTER
        shares = max(min(most, up(up(many, STAGE) // STAGE, CLUSTER)), CLUSTER)
        sizes = dict(K=inputs, M=width, ROWS_X=steps * rows, SKIP=skip * rows, ROWS_S=many, SCALED=int(scaled))
        sizes |= dict(DOWN=down, ACROSS=across, STAGE=STAGE, STAGES=STAGES, SHARES=shares, CLUSTER=CLUSTER)
        source = launch.constants(**sizes) + launch.text("tiles.cuh", "weigh.cu")
        out = [jax.ShapeDtypeStruct((seeds, shares // CLUSTER, inputs + 1, width), jnp.float32)]
        threads, memory = down * across * 32, memory_of(inputs, width)
        (parts,) = launch.kernel_call("weigh", source, out, (shares, seeds), threads, memory)(x, sums, scale)
        total = parts.sum(1)
        return total[:, :-1], total[:, -1]

    return of_one_seed(kernel)(x, sums, scale if scaled else jnp.zeros(1))


def warps(inputs: int, width: int) -> tuple[int, int]:
    """How many of a block's eight warps divide the inputs, and how many the outputs: so that each has the fewest tiles
    of 16 by 8, which stay in its registers."""
    return min((2, 4), (4, 2), key=lambda x: up(inputs + 1, 16 * x[0]) // x[0] * (up(width, 8 * x[1]) // x[1]))


def memory_of(inputs: int, width: int) -> int:
    """Bytes of shared memory, as in weigh.cu: for stages of rows, and in the end for the product."""
    down, across = warps(inputs, width)
    row = up(inputs + 1, 16 * down) + 8 + up(up(width, 8 * across), 16) + 8
    return max(2 * STAGES * STAGE * row, 4 * (inputs + 1) * width)
