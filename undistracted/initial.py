"""How the weights of a whole module begin, where not as its layers draw them: uniform in 1 / sqrt(inputs)."""

import equinox as eqx
import jax
import jax.numpy as jnp

from undistracted.decoder import Deconv
from undistracted.encoder import Encoder
from undistracted.gru import GRU
from undistracted.nets import Linear

WINDOW = 16  # pixels that a convolution of the encoder sees


def as_drawn(module, key):
    return module


def orthogonal(module, key, gain: float = 1.0):
    """Orthogonal weights and zero biases in all linear layers."""

    def linear(layer, key):
        return begun(layer, jax.nn.initializers.orthogonal(gain)(key, layer.weight.shape))

    return renewed(module, key, {Linear: linear})


def glorot(module, key):
    """Weights uniform in sqrt(6 / (inputs + outputs of a unit)), of a GRU's state orthogonal, and zero biases."""

    uniform = jax.nn.initializers.glorot_uniform

    def linear(layer, key):
        return begun(layer, uniform()(key, layer.weight.shape))

    def deconv(layer, key):
        return begun(layer, uniform(in_axis=0)(key, layer.weight.shape))

    def encoder(module, key):
        keys = jax.random.split(key, len(module.layers))
        shapes = [(x.weight.shape[0] // WINDOW, x.weight.shape[1]) for x in module.layers]
        weights = [uniform()(k, (WINDOW, *shape)).reshape(-1, shape[1]) for k, shape in zip(keys, shapes, strict=True)]
        return eqx.tree_at(lambda x: x.layers, module, [*map(begun, module.layers, weights)])

    def gru(cell, key):
        k1, k2 = jax.random.split(key)
        return eqx.tree_at(lambda x: (x.inputs, x.hidden), cell, (linear(cell.inputs, k1), orthogonal(cell.hidden, k2)))

    return renewed(module, key, {Linear: linear, Deconv: deconv, Encoder: encoder, GRU: gru})


INITIAL = {"uniform": as_drawn, "glorot": glorot}


def begun(layer, weight):
    return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros_like(layer.bias)))


def renewed(module, key, kinds: dict):
    """The module with each part of one of the kinds made anew, by `kinds[type](part, key)`."""
    parts, structure = jax.tree.flatten(module, is_leaf=lambda x: type(x) in kinds)
    keys = jax.random.split(key, len(parts))
    parts = [kinds[type(x)](x, k) if type(x) in kinds else x for x, k in zip(parts, keys, strict=True)]
    return jax.tree.unflatten(structure, parts)
