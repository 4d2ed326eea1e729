"""The kernels of a dream: imagine.cu, judge.cu, pull_back.cu and blame.cu, in which a warp has 16 rows (rows.cuh)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from undistracted.kernels import launch
from undistracted.kernels.weights import deal, dealt, of_one_seed, pack, up

CREWS = 3, 5, 7  # warps of a block that have rows
WIDEST = 232  # columns for which a warp's registers suffice
STAGE = 32  # tiles that come at once, as in ring.cuh
ROOM = 49_152  # bytes of a block for weights and biases, at least


class Sizes(NamedTuple):
    """As in rows.cuh, and what of the policy is a constant."""

    D: int
    Z: int
    A: int
    N: int
    M: int
    H: int
    n: int
    STD_SHIFT: float = 0.0
    MIN_STD: float = 0.0

    @property
    def features(self) -> int:
        """Numbers of a latent, whose state is filled up to a whole tile."""
        return self.D + up(self.Z, 8)

    def memory(self) -> dict[str, int]:
        """Bytes that a row needs in each kernel, beside the weights."""
        D, Z, A, N, M, *_ = self
        layer, states = max(M, N, up(Z, 8) + up(A, 8)), up(Z, 8)
        return {
            "imagine": D * 4 + up(self.features, 16) * 2 + up(layer, 16) * 2,
            "judge": 3 * up(max(self.features, M), 16) * 2,
            "pull_back": D * 4 + 3 * up(max(D, N, 2 * states), 16) * 2,
            "blame": up(max(M, 2 * A), 16) * 2,
        }

    def crew(self, name: str, rows: int, seeds: int = 1) -> int:
        """As few warps to a block as let all blocks run at once, or as many as find room; 0 if none do."""
        room = [c for c in CREWS if 16 * c * self.memory()[name] + ROOM <= launch.SHARED_MEMORY]
        return next((c for c in room if seeds * blocks(rows, c) <= launch.PROCESSORS), max(room, default=0))


def text_of(name: str) -> str:
    return launch.text("tiles.cuh", "ring.cuh", "rows.cuh", f"{name}.cu")


def blocks(rows: int, crew: int) -> int:
    return -(-rows // (16 * crew))


class Kernels:
    """The kernels of a dream for one set of sizes, as functions of one seed's arrays: `imagine` rolls the policy out in
    the world model, `judge` runs reward and critic over what was imagined, forward and back, `pull_back` takes the
    gradient of the mean return back through the dynamics to the actions, and `blame` takes that of the policy's outputs
    back through its layers. Features have one step more than all else: the start, before all others."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes

    def run(self, name: str, shapes: list, *args, steps: bool):
        """`steps`: a block has rows of all steps, else it has its own of each."""

        def kernel(*args):
            seeds, rows = len(args[0]), self.sizes.n * (self.sizes.H if steps else 1)
            crew = self.sizes.crew(name, rows, seeds)
            sizes = self.sizes._asdict() | dict(WARPS=crew, MEMORY=launch.SHARED_MEMORY)
            source = launch.constants(**sizes) + text_of(name)
            outs = [jax.ShapeDtypeStruct((seeds, *shape), dtype) for shape, dtype in shapes]
            grid, threads = (blocks(rows, crew), seeds), 32 * (crew + 1)
            return launch.kernel_call(name, source, outs, grid, threads, launch.SHARED_MEMORY)(*args)

        return of_one_seed(kernel)(*args)

    def imagine(self, *args):
        """(start's belief, state, noise of actions, of states, weights, biases) -> features, outputs of the policy, its
        four hidden layers, and inputs, gates, prior's layer and slope of the sample, as `pull_back` takes them."""
        D, Z, A, N, M, H, n, *_ = self.sizes
        shapes = [((H + 1, n, self.sizes.features), jnp.bfloat16), ((H, n, 2 * A), jnp.float32)]
        shapes += [((H, n, *x), jnp.bfloat16) for x in (*[(M,)] * 4, (N,), (4, D), (N,), (up(Z, 8),))]
        return self.run("imagine", shapes, *args, steps=False)

    def judge(self, *args):
        """(features, weights, biases, last weights, gradient by each step's reward and value) -> reward, value,
        gradient by the features, outputs of the critic's hidden layers, slopes by their sums."""
        _, _, _, _, M, H, n, *_ = self.sizes
        shapes = [((H, n), jnp.float32)] * 2 + [((H, n, self.sizes.features), jnp.bfloat16)]
        shapes += [((H, n, M), jnp.bfloat16)] * 6
        return self.run("judge", shapes, *args, steps=True)

    def pull_back(self, *args):
        """(gradient by the features, features, inputs, gates, prior's layer, slope of the sample, weights) -> gradient
        by the actions."""
        shape = self.sizes.H, self.sizes.n, self.sizes.A
        return self.run("pull_back", [(shape, jnp.float32)], *args, steps=False)[0]

    def blame(self, *args):
        """(gradient by the policy's outputs, its four hidden layers, weights) -> gradients by those layers' sums."""
        shape = self.sizes.H, self.sizes.n, self.sizes.M
        return self.run("blame", [(shape, jnp.bfloat16)] * 4, *args, steps=True)


# --- their weights ---------------------------------------------------------------------------------------------------


# Each kernel's weights are one vector, in the order of their use.


def arrange_judge(features: tuple, *weights):
    """Of both heads, three layers forward and back."""
    parts = []
    for a, b, c, _ in (weights[:4], weights[4:]):
        wide = b.shape[:1]
        parts += [deal(a, features, wide), *[deal(w, wide, wide) for w in (b, c, c.T, b.T)], deal(a.T, wide, features)]
    return np.concatenate(parts)


def arrange_imagine(p1, p2, p3, p4, p5, inputs, x, h, hidden, out):
    D, wide, N, Z, A = h.shape[:1], p2.shape[:1], x.shape[:1], (out.shape[1] // 2,), (p5.shape[1] // 2,)
    policy = [deal(p1, D + Z, wide), *[deal(w, wide, wide) for w in (p2, p3, p4)], deal(p5, wide, 2 * A)]
    gates = [(w.reshape(len(w), 3, -1), width) for w, width in ((x, N), (h, D))]
    ends = [*range(64, D[0] - 8, 64), *D]  # of columns that are taken at once: eight tiles, or one more
    some = [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]
    gates = [deal(w[..., s].reshape(len(w), -1), width, 3 * (s.stop - s.start,)) for s in some for w, width in gates]
    return np.concatenate([*policy, deal(inputs, Z + A, N), *gates, deal(hidden, D, N), deal(out, N, 2 * Z)])


def arrange_pull_back(inputs, x, h, hidden, out):
    D, N, Z = h.shape[:1], x.shape[:1], (out.shape[1] // 2,)
    A = (len(inputs) - Z[0],)
    gates_x, gates_h = ([deal(gate.T, D, w.shape[:1]) for gate in np.split(w, 3, 1)[::-1]] for w in (x, h))
    return np.concatenate([deal(out.T, 2 * Z, N), deal(hidden.T, N, D), *gates_x, deal(inputs.T, N, Z + A), *gates_h])


def arrange_blame(p2, p3, p4, p5):
    wide = p2.shape[:1]
    return np.concatenate([pack(p5.T[:, dealt(*wide)]), *[deal(w.T, wide, wide) for w in (p4, p3, p2)]])
