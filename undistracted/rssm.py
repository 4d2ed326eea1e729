"""The recurrent state-space model: prior q(z' | z, a), posterior p(z' | z, a, x'), and their balanced KL.

A latent z is a deterministic belief (the GRU's state) and a stochastic state. `observe` filters a batch of sequences,
`step` filters one row for acting, `imagine` rolls the prior out under a policy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Bool, Float

from undistracted import parts
from undistracted.data import where_rows
from undistracted.dists import Normal, kl
from undistracted.gru import GRU, gru_update
from undistracted.nets import Linear, elu, exact_product, fast_elu
from undistracted.recurrence import hoisted_scan


class Latent(NamedTuple):
    belief: Float[Array, "*n D"]
    state: Float[Array, "*n Z"]

    @property
    def features(self) -> Float[Array, "*n D+Z"]:
        """What reward, policy and value see."""
        return jnp.concatenate([self.belief, self.state], -1)


def fresh_start(action, first):
    """At an episode's start, forget belief and action (and state, always)."""
    return where_rows(first, jnp.zeros_like(action), action), first


def official_start(action, first):
    """The released code's episode boundary: the belief flows on and the last action of the old episode is used."""
    previous = jnp.concatenate([jnp.zeros_like(action[:1]), action[:-1]])
    return where_rows(first, previous, action), jnp.zeros_like(first)


def balanced_kl(posterior: Normal, prior: Normal, alpha: float) -> Float[Array, "*n"]:
    """alpha KL(sg(p) || q) + (1 - alpha) KL(p || sg(q)): KL(p || q), its gradient split between the two."""
    return alpha * kl(sg(posterior), prior) + (1 - alpha) * kl(posterior, sg(prior))


class Transition(eqx.Module):
    """The prior q(z' | z, a), and what is imagined with it."""

    inputs: Linear  # state, action -> GRU input
    gru: GRU
    prior_hidden: Linear
    prior_out: Linear
    unroll: int = eqx.field(static=True)

    def __init__(self, action: int, *, belief, state, hidden, key, dtype, unroll=1, merge=True):
        k = jax.random.split(key, 6)  # the last two are for the posterior
        self.inputs = Linear(state + action, hidden, k[0], dtype)
        self.gru = GRU(hidden, belief, k[1], dtype, merge)
        self.prior_hidden = Linear(belief, hidden, k[2], dtype)
        self.prior_out = Linear(hidden, 2 * state, k[3], dtype)
        self.unroll = unroll

    @property
    def sizes(self) -> tuple[int, int]:
        """(D, Z)"""
        return self.gru.hidden.weight.shape[0], self.prior_out.bias.shape[0] // 2

    def prior(self, belief) -> Normal:
        return normal(self.prior_out.exact(elu(self.prior_hidden(belief), self.inputs.dtype)))

    def imagine(self, start: Latent, policy, rows, key) -> tuple[Latent, Any]:
        """Roll the prior out for H steps, acting by `action, note = policy(latent, row)` on H rows: the H latents after
        `start`, and the H notes."""
        horizon = jax.tree.leaves(rows)[0].shape[0]
        noise, gru = parts.normal(key, (horizon, *start.state.shape)), self.gru.prepared()

        def step(latent, row):
            noise, row = row
            action, note = policy(latent, row)
            inputs = elu(self.inputs(jnp.concatenate([latent.state, action], -1)), self.inputs.dtype)
            belief = gru(inputs, latent.belief)
            prior = self.prior(belief)
            latent = Latent(belief, prior.mean + prior.std * noise)
            return latent, (latent, note)

        return jax.lax.scan(step, start, (noise, rows), unroll=self.unroll)[1]


class RSSM(Transition):
    posterior_hidden: Linear  # belief, encoding -> hidden
    posterior_out: Linear
    boundary: Callable = eqx.field(static=True)
    filter: Callable = eqx.field(static=True)

    def __init__(self, action, encoding, *, key, dtype, boundary=fresh_start, filter=None, **options):
        super().__init__(action, key=key, dtype=dtype, **options)
        (belief, state), hidden = self.sizes, self.inputs.bias.size
        k = jax.random.split(key, 6)
        self.posterior_hidden = Linear(belief + encoding, hidden, k[4], dtype)
        self.posterior_out = Linear(hidden, 2 * state, k[5], dtype)
        self.boundary, self.filter = boundary, filter or filter_sequences

    def initial(self, *rows: int) -> Latent:
        return Latent(*(jnp.zeros((*rows, size)) for size in self.sizes))

    def task(self, latent: Latent) -> Latent:
        """What policy and imagination use of a filtered latent: all of it."""
        return latent

    def products(self, action, x) -> tuple[dict, dict]:
        """Weights of the products that filtering takes step by step, and what is added to them: biases, and the
        products with action and encoding, which do not depend on the recurrence."""
        (belief, state), (gru, gru_bias) = self.sizes, self.gru.merged()
        inputs, hidden, out = self.inputs, self.posterior_hidden, self.posterior_out
        rows = action.shape[:-1]
        weights = {"inputs": inputs.weight[:state], "gru": gru, "hidden": hidden.weight[:belief], "out": out.weight}
        offsets = {
            "inputs": inputs.product(action, slice(state, None)) + inputs.bias,
            "gru": jnp.broadcast_to(gru_bias, (*rows, gru_bias.size)),
            "hidden": hidden.product(x, slice(belief, None)) + hidden.bias,
            "out": jnp.broadcast_to(out.bias, (*rows, out.bias.size)),
        }
        return weights, offsets

    def step(self, latent: Latent, action, x, first: Bool[Array, "*n"], noise=None) -> Latent:
        """Filter one row, for acting; the state is the posterior's mean unless standard normal noise is given."""
        return filter_row(self.products, self.inputs.dtype, latent, action, x, first, noise)

    def observe(self, x, action, first: Bool[Array, "T B"], key) -> tuple[Latent, Normal, Normal]:
        """Filter sequences from a zero latent: sampled latents, posteriors and priors, each (T, B, ...)."""
        action, forget = self.boundary(action, first)
        latent, posterior = self.filter(self, action, x, first, forget, key)
        return latent, posterior, self.prior(latent.belief)


def filter_sequences(rssm: RSSM, action, x, first, forget, key) -> tuple[Latent, Normal]:
    """Latents and posteriors of sequences, from a zero latent, for what the RSSM makes of action and encoding."""
    weights, offsets = rssm.products(action, x)
    start = rssm.initial(first.shape[1])
    return filter_rows(rssm.unroll, rssm.inputs.dtype, weights, offsets, start, first, forget, key)


def filter_row(products, dtype: str, latent: Latent, action, x, first, noise=None) -> Latent:
    """The latent after one row, for `products(action, x)` as `RSSM` has them."""
    latent, action = where_rows(first, jax.tree.map(jnp.zeros_like, (latent, action)), (latent, action))
    weights, offsets = products(action, x)

    def linear(name, x):
        return exact_product(x, weights[name], dtype) + offsets[name]

    belief, posterior = posterior_cell(linear, latent)
    return Latent(belief, posterior.mean if noise is None else posterior.mean + posterior.std * noise)


def filter_rows(unroll, dtype: str, weights, offsets, start: Latent, first, forget, key) -> tuple[Latent, Normal]:
    """Latents and posteriors of sequences; the state is forgotten at first rows, the belief where `forget` says."""
    noise = parts.normal(key, (*first.shape, start.state.shape[-1]))
    keep = Latent(*(1.0 - mask[..., None].astype(jnp.float32) for mask in (forget, first)))

    def cell(linear, latent, row):
        keep, noise = row
        belief, posterior = posterior_cell(linear, jax.tree.map(jnp.multiply, latent, keep))
        latent = Latent(belief, posterior.mean + posterior.std * noise)
        return latent, (latent, posterior)

    return hoisted_scan(cell, unroll, dtype, weights, offsets, start, (keep, noise))


def posterior_cell(linear, latent: Latent) -> tuple[Array, Normal]:
    """The next belief and the posterior over the next state; `linear(name, x)` adds action and encoding."""
    inputs = fast_elu(linear("inputs", latent.state))
    gates = linear("gru", jnp.concatenate([inputs, latent.belief], -1))
    belief = gru_update(*jnp.split(gates, 4, -1), latent.belief)
    return belief, normal(linear("out", fast_elu(linear("hidden", belief))))


def normal(out) -> Normal:
    mean, raw = jnp.split(out, 2, -1)
    return Normal(mean, jax.nn.softplus(raw) + 0.1)
