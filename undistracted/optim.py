"""Adam as the paper uses it, one function that applies it to a module, and slow copies of modules."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


def clip_by_norm(limit: float) -> optax.GradientTransformation:
    """Gradients of a global norm above the limit are scaled down to it. Not optax's, which selects each gradient or its
    scaled copy: at that the GPU compiler of JAX 0.11 fails for Dreamer's original settings, by an error of its own."""

    def update(gradients, state, params=None):
        scale = jnp.minimum(1, limit / optax.tree.norm(gradients))
        return jax.tree.map(lambda g: scale * g, gradients), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def adam(rate: float, clip: float | None = None, eps: float = 1e-8) -> optax.GradientTransformation:
    """Adam, behind a clip of the global gradient norm where one is given."""
    steps = [] if clip is None else [clip_by_norm(clip)]
    return optax.chain(*steps, optax.adam(rate, eps=eps))


def apply(optimiser: optax.GradientTransformation, gradients, state, module):
    """One step of the optimiser: the new module and optimiser state."""
    updates, state = optimiser.update(gradients, state, module)
    return eqx.apply_updates(module, updates), state


def follow(target, online, rate):
    """The slow copy, moved by `rate` of the way towards the module that it follows."""
    return jax.tree.map(lambda slow, fast: slow + rate * (fast - slow), target, online)
