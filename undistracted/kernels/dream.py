"""A dream by kernels of our own: what `behaviour.PLAIN` computes, with the same draws.

XLA runs a layer as a product and a pass for bias and ELU, each through the GPU's memory, and a step of imagination as a
dozen kernels that wait for each other. Here a warp keeps its rows on the chip from the first layer to the last, and
through all steps of the horizon.
"""

from functools import partial

import jax
import jax.numpy as jnp

from undistracted.behaviour import Dream, Way, lambda_return
from undistracted.kernels.rows import (
    STAGE,
    WIDEST,
    Kernels,
    Sizes,
    arrange_blame,
    arrange_imagine,
    arrange_judge,
    arrange_pull_back,
)
from undistracted.kernels.weigh import weigh
from undistracted.kernels.weights import packed, padded, up
from undistracted.rssm import Transition
from undistracted.slopes import Trace, layer_gradient


def fits(actor, critic, model) -> bool:
    """Whether the kernels are written for such networks: heads of three layers as wide as the policy's four, eights of
    units, and rows that leave room for weights."""
    if not isinstance(model.rssm, Transition):
        return False
    sizes, shapes = sizes_of(actor, model, 2, 8), [[w.shape for w in layers(x)[0]] for x in (model.reward, critic)]
    D, Z, A, N, M, *_ = sizes
    heads = all(shape == [(D + Z, M), (M, M), (M, M), (M, 1)] for shape in shapes) and len(actor.mlp.layers) == 5
    wide = (
        all(x % 8 == 0 and x <= WIDEST for x in (D, N, M))
        and Z % 2 == 0
        and A <= 40
        and sizes.features <= WIDEST
        and 2 * up(Z, 8) <= 8 * STAGE
    )
    return heads and wide and all(sizes.crew(name, 1) for name in sizes.memory())


def sizes_of(actor, model, horizon: int, rows: int) -> Sizes:
    hidden, width = model.rssm.inputs.bias.size, actor.mlp.layers[0].bias.size
    return Sizes(*model.rssm.sizes, actor.action_size, hidden, width, horizon, rows, actor.shift, actor.min_std)


def layers(network) -> tuple[list, list]:
    return [layer.weight for layer in network.mlp.layers], [layer.bias for layer in network.mlp.layers]


def dream(actor, critic, model, start, key, *, horizon, gamma, lambda_, discounted=False) -> Dream:
    """What `behaviour.dream` returns; the critic's first inputs are all features, the start's too, as the kernels have
    them."""
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
    last = jnp.concatenate([weights[-1][:, 0] for weights, _ in heads])
    biases = jnp.concatenate([padded(jnp.concatenate(biases)) for _, biases in heads])
    by = by_reward_and_value(weight, gamma, lambda_, len(start.state))
    reward, value, gradient, *kept = kernels.judge(
        features, packed(partial(arrange_judge, rssm.sizes), heads[0][0] + heads[1][0]), biases, last, by
    )
    pull = kernels.pull_back(gradient, features, *dynamics, packed(arrange_pull_back, transition))
    returns = lambda_return(reward, value, gamma, lambda_)
    critic = Trace(value, None, (features, *kept[:3]), (*kept[3:], jnp.ones_like(value)[..., None]))
    return Dream(features[..., : sum(rssm.sizes)], noise, returns, (out, hidden), pull, weight, critic)


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
    weights = [(layer.weight, layer.bias) for layer in actor.mlp.layers]
    return _policy_output(weights, dream.critic.inputs[0], *dream.policy)


@jax.custom_vjp
def _policy_output(weights, features, out, hidden):
    return out


def _policy_gradient(residuals, by_out):
    weights, features, hidden = residuals
    steps, rows, outputs = by_out.shape
    kernels = Kernels(Sizes(8, 2, outputs // 2, 8, hidden[0].shape[-1], steps, rows))
    sums = kernels.blame(by_out, *hidden, packed(arrange_blame, [weight for weight, _ in weights[1:]]))
    pairs = by_weights(weights[:4], [features, *hidden[:3]], sums)
    return [*pairs, layer_gradient(hidden[3], by_out)], None, None, None


def by_weights(weights, inputs, sums, scale=None, skip: int = 0) -> list:
    """Gradients of layers' weights and biases; of the first one's inputs the kernels' features have more than it."""
    skips = [skip, *[0] * (len(inputs) - 1)]
    pairs = [weigh(x, by, scale, s) for x, by, s in zip(inputs, sums, skips, strict=True)]
    return [(by[: len(weight)], bias) for (weight, _), (by, bias) in zip(weights, pairs, strict=True)]


_policy_output.defvjp(lambda weights, features, out, hidden: (out, (weights, features, hidden)), _policy_gradient)


def critic_value(critic, dream: Dream):
    """What `behaviour.critic_value` returns."""
    return _critic_value([(layer.weight, layer.bias) for layer in critic.mlp.layers], dream.critic)


@jax.custom_vjp
def _critic_value(weights, trace: Trace):
    return trace.value


def _critic_gradient(residuals, c):
    weights, trace = residuals
    *inputs, last = trace.inputs
    pairs = by_weights(weights[:3], inputs, trace.slopes[:-1], c, skip=1)  # the start has no value
    return [*pairs, layer_gradient(last, c[..., None])], None


_critic_value.defvjp(lambda weights, trace: (trace.value, (weights, trace)), _critic_gradient)

FUSED = Way(dream, policy_output, critic_value, over_seeds=lambda fn: fn)
