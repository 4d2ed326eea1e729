"""Adam as the paper uses it, one function that applies it to a module, and slow copies of modules."""

import equinox as eqx
import jax
import optax


def adam(rate: float, clip: float | None = None, eps: float = 1e-8) -> optax.GradientTransformation:
    """Adam, behind a clip of the global gradient norm where one is given."""
    steps = [] if clip is None else [optax.clip_by_global_norm(clip)]
    return optax.chain(*steps, optax.adam(rate, eps=eps))


def apply(optimiser: optax.GradientTransformation, gradients, state, module):
    """One step of the optimiser: the new module and optimiser state."""
    updates, state = optimiser.update(gradients, state, module)
    return eqx.apply_updates(module, updates), state


def follow(target, online, rate):
    """The slow copy, moved by `rate` of the way towards the module that it follows."""
    return jax.tree.map(lambda slow, fast: slow + rate * (fast - slow), target, online)
