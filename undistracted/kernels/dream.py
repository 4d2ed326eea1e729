"""A dream by kernels of our own: what `behaviour.PLAIN` computes, with the same draws.

XLA runs a layer as a product and a pass for bias and ELU, each through the GPU's memory, and a step of imagination as a
dozen kernels that wait for each other. Here a block of threads keeps its rows in its own memory from the first layer to
the last, and through all steps of the horizon.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from undistracted.behaviour import Dream, Way, lambda_return
from undistracted.kernels import launch
from undistracted.kernels.weigh import weigh
from undistracted.kernels.weights import COLUMNS, apart, columns, of_one_seed, pack, packed, padded, up
from undistracted.rssm import Transition
from undistracted.slopes import Trace, layer_gradient

THREADS, TILES, WIDEST = 320, 3, 240  # as in rows.cuh; tiles of 16 rows to a warp; columns for which registers suffice


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

    def memory(self) -> dict[str, int]:
        """Bytes of each row of a block, as in each kernel's text."""
        D, Z, A, N, M, *_ = self
        features, states = apart(D + Z), up(Z, 8)
        return {
            "imagine": (features + apart(Z + A) + 2 * max(apart(M), apart(N))) * 2 + D * 4,
            "judge": (features + max(features, apart(M)) + 2 * apart(M)) * 2,
            "pull_back": (D + states) * 4 + (3 * max(apart(D), apart(N)) + apart(2 * states)) * 2,
            "blame": (apart(2 * A) + 2 * apart(M)) * 2,
        }


def fits(actor, critic, model) -> bool:
    """Whether the kernels are written for such networks: heads of three layers as wide as the policy's four, eights of
    units, and tiles that find room."""
    if not isinstance(model.rssm, Transition):
        return False
    sizes, shapes = sizes_of(actor, model, 2, 8), [[w.shape for w in layers(x)[0]] for x in (model.reward, critic)]
    D, Z, A, N, M, *_ = sizes
    heads = all(shape == [(D + Z, M), (M, M), (M, M), (M, 1)] for shape in shapes) and len(actor.mlp.layers) == 5
    wide = all(x % 8 == 0 and x <= WIDEST for x in (D, N, M)) and Z % 2 == 0 and A <= 8 * COLUMNS and D + Z <= WIDEST
    return heads and wide and 32 * TILES * max(sizes.memory().values()) <= launch.SHARED_MEMORY


def sizes_of(actor, model, horizon: int, rows: int) -> Sizes:
    hidden, width = model.rssm.inputs.bias.size, actor.mlp.layers[0].bias.size
    return Sizes(*model.rssm.sizes, actor.action_size, hidden, width, horizon, rows, actor.shift, actor.min_std)


def layers(network) -> tuple[list, list]:
    return [layer.weight for layer in network.mlp.layers], [layer.bias for layer in network.mlp.layers]


# --- kernels ---------------------------------------------------------------------------------------------------------


class Kernels:
    """The kernels of a dream (dream.cuh) for one set of sizes, as functions of one seed's arrays."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes

    def run(self, name: str, shapes: list, *args, steps: bool):
        """`steps`: a block has rows of all steps, else it has its own of each."""

        def kernel(*args):
            seeds, (rows, least) = len(args[0]), (self.sizes.H * self.sizes.n, TILES) if steps else (self.sizes.n, 1)
            # Blocks that go through all steps should run all at once, and then have as few rows as that allows.
            tiles = min(max(-(-rows * seeds // (32 * launch.PROCESSORS)), least), TILES)
            source = launch.constants(**self.sizes._asdict(), MT=tiles) + launch.text(
                "rows.cuh", "dream.cuh", f"{name}.cu"
            )
            outs = [jax.ShapeDtypeStruct((seeds, *shape), dtype) for shape, dtype in shapes]
            memory, grid = 32 * tiles * self.sizes.memory()[name], (-(-rows // (32 * tiles)), seeds)
            return launch.kernel_call(name, source, outs, grid, THREADS, memory)(*args)

        return of_one_seed(kernel)(*args)

    def imagine(self, *args):
        """(start's belief, state, noise of actions, of states, weights, biases) -> features, outputs of the policy, its
        four hidden layers, and inputs, gates, prior's layer and slope of the sample, as `pull_back` takes them."""
        D, Z, A, N, M, H, n, *_ = self.sizes
        shapes = [((H + 1, n, D + Z), jnp.bfloat16), ((H, n, 2 * A), jnp.float32)]
        shapes += [((H, n, *x), jnp.bfloat16) for x in (*[(M,)] * 4, (N,), (D, 4), (N,), (Z,))]
        return self.run("imagine", shapes, *args, steps=False)

    def judge(self, *args):
        """(features, weights, biases, last weights, gradient by each step's reward and value) -> reward, value,
        gradient by the features, outputs of the critic's hidden layers, slopes by their sums."""
        D, Z, _, _, M, H, n, *_ = self.sizes
        shapes = [((H, n), jnp.float32)] * 2 + [((H, n, D + Z), jnp.bfloat16)] + [((H, n, M), jnp.bfloat16)] * 6
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


def arrange_judge(*weights):
    """Of both heads, forward and turned; the value's own weight is one column."""
    heads = weights[:4], weights[4:]
    return np.concatenate(
        [pack(w, 1 if w is d else COLUMNS) for a, b, c, d in heads for w in (a, b, c, d, c.T, b.T, a.T)]
    )


def interleaved(gates):
    """The three gates' weights as one: a tile of each gate's columns next to each other."""
    gates = columns(gates, 3, 8 * COLUMNS).reshape(len(gates), 3, -1, 8)
    return gates.swapaxes(1, 2).reshape(len(gates), -1)


def arrange_imagine(p1, p2, p3, p4, p5, inputs, x, h, hidden, out):
    wide = [pack(w) for w in (p1, p2, p3, p4, inputs, interleaved(x), interleaved(h), hidden)]
    outputs = [pack(columns(w, 2), 1) for w in (p5, out)]
    return np.concatenate([*wide[:4], outputs[0], *wide[4:], outputs[1]])


def arrange_pull_back(inputs, x, h, hidden, out):
    gates = [gate.T for weight in (x, h) for gate in np.split(weight, 3, 1)]
    state, action = (columns(part.T, 1) for part in np.split(inputs, [out.shape[1] // 2]))
    every = [columns(out, 2).T, hidden.T, *gates, np.concatenate([state, action], 1)]
    return np.concatenate([pack(weight) for weight in every])


def arrange_blame(p2, p3, p4, p5):
    return np.concatenate([pack(weight.T) for weight in (p5, p4, p3, p2)])


# --- the dream -------------------------------------------------------------------------------------------------------


def dream(actor, critic, model, start, key, *, horizon, gamma, lambda_, discounted=False) -> Dream:
    """What `behaviour.dream` returns; the critic's first inputs are all features, the start's too."""
    rssm, kernels = model.rssm, Kernels(sizes_of(actor, model, horizon, len(start.state)))
    state_key, action_key = jax.random.split(key)
    noise = jax.random.normal(action_key, (horizon, len(start.state), actor.action_size))
    state_noise = jax.random.normal(state_key, (horizon, *start.state.shape))
    weight = (gamma if discounted else 1.0) ** jnp.arange(horizon - 1.0)[:, None]

    (policy, own), gru = layers(actor), rssm.gru
    transition = [rssm.inputs, gru.inputs, gru.hidden, rssm.prior_hidden, rssm.prior_out]
    transition = [layer.weight for layer in transition]
    biases = [*own[:4], padded(own[4], 2), rssm.inputs.bias, gru.merged()[1], rssm.prior_hidden.bias]
    biases = jnp.concatenate([*biases, padded(rssm.prior_out.bias, 2)])
    features, out, *kept = kernels.imagine(
        start.belief, start.state, noise, state_noise, packed(arrange_imagine, policy + transition), biases
    )
    hidden, dynamics = kept[:4], kept[4:]

    heads = [layers(head) for head in (model.reward, critic)]
    last = jnp.concatenate([weights[-1][:, 0] for weights, _ in heads]).astype(jnp.bfloat16)
    biases = jnp.concatenate([padded(jnp.concatenate(biases)) for _, biases in heads])
    by = by_reward_and_value(weight, gamma, lambda_, len(start.state))
    reward, value, gradient, *kept = kernels.judge(
        features, packed(arrange_judge, heads[0][0] + heads[1][0]), biases, last, by
    )
    pull = kernels.pull_back(gradient, features, *dynamics, packed(arrange_pull_back, transition))
    returns = lambda_return(reward, value, gamma, lambda_)
    critic = Trace(value, None, (features, *kept[:3]), (*kept[3:], jnp.ones_like(value)[..., None]))
    return Dream(features, noise, returns, (out, hidden), pull, weight, critic)


def by_reward_and_value(weight, gamma: float, lambda_: float, rows: int):
    """(H, 2): the gradient of the mean weighted return by each step's reward and value. Returns are linear in both, so
    that it is the same for all rows, and known before them."""
    each = jnp.zeros((len(weight) + 1, 1))

    def mean_return(reward, value):
        return (weight * lambda_return(reward, value, gamma, lambda_)).mean() / rows

    return jnp.concatenate(jax.grad(mean_return, (0, 1))(each, each), 1)


# --- gradients of what is known from a dream -------------------------------------------------------------------------


def policy_output(actor, dream: Dream):
    """What `behaviour.policy_output` returns."""
    return _policy_output([(layer.weight, layer.bias) for layer in actor.mlp.layers], dream.features, *dream.policy)


@jax.custom_vjp
def _policy_output(weights, features, out, hidden):
    return out


def _policy_gradient(residuals, by_out):
    weights, features, hidden = residuals
    steps, rows, outputs = by_out.shape
    kernels = Kernels(Sizes(8, 2, outputs // 2, 8, hidden[0].shape[-1], steps, rows))
    sums = kernels.blame(by_out, *hidden, packed(arrange_blame, [weight for weight, _ in weights[1:]]))
    pairs = [weigh(x, by) for x, by in zip([features, *hidden[:3]], sums, strict=True)]
    return [*pairs, layer_gradient(hidden[3], by_out)], None, None, None


_policy_output.defvjp(lambda weights, features, out, hidden: (out, (weights, features, hidden)), _policy_gradient)


def critic_value(critic, dream: Dream):
    """What `behaviour.critic_value` returns."""
    return _critic_value([(layer.weight, layer.bias) for layer in critic.mlp.layers], dream.critic)


@jax.custom_vjp
def _critic_value(weights, trace: Trace):
    return trace.value


def _critic_gradient(trace: Trace, c):
    *inputs, last = trace.inputs
    pairs = [weigh(x, by, c, skip=len(x) - len(by)) for x, by in zip(inputs, trace.slopes[:-1], strict=True)]
    return [*pairs, layer_gradient(last, c[..., None])], None


_critic_value.defvjp(lambda weights, trace: (trace.value, trace), _critic_gradient)

FUSED = Way(dream, policy_output, critic_value, over_seeds=lambda fn: fn)
