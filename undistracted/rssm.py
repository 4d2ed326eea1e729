"""The recurrent state-space model: prior q(z' | z, a), posterior p(z' | z, a, x'), and their balanced KL.

A latent z is a deterministic belief (the GRU's state) and a stochastic state. `observe` filters a batch of sequences,
`step` filters one row for acting, `imagine` rolls the prior out under a policy.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Bool, Float

from undistracted.data import where_rows
from undistracted.dists import Normal, kl
from undistracted.nets import GRU, Linear


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
    """alpha KL(sg(p) || q) + (1 - alpha) KL(p || sg(q)): the value of KL(p || q), its gradient split between the two."""
    return alpha * kl(sg(posterior), prior) + (1 - alpha) * kl(posterior, sg(prior))


class RSSM(eqx.Module):
    inputs: Linear  # state, action -> GRU input
    gru: GRU
    prior_hidden: Linear
    prior_out: Linear
    posterior_hidden: Linear  # belief, encoding -> hidden
    posterior_out: Linear
    boundary: Callable = eqx.field(static=True)
    unroll: int = eqx.field(static=True)

    def __init__(self, action, encoding, *, belief, state, hidden, key, dtype, unroll=1, boundary=fresh_start):
        k = jax.random.split(key, 6)
        self.inputs = Linear(state + action, hidden, k[0], dtype)
        self.gru = GRU(hidden, belief, k[1], dtype)
        self.prior_hidden = Linear(belief, hidden, k[2], dtype)
        self.prior_out = Linear(hidden, 2 * state, k[3], dtype)
        self.posterior_hidden = Linear(belief + encoding, hidden, k[4], dtype)
        self.posterior_out = Linear(hidden, 2 * state, k[5], dtype)
        self.boundary, self.unroll = boundary, unroll

    @property
    def sizes(self) -> tuple[int, int]:
        """(D, Z)"""
        return self.gru.hidden.weight.shape[0], self.prior_out.bias.shape[0] // 2

    def initial(self, *rows: int) -> Latent:
        return Latent(*(jnp.zeros((*rows, size)) for size in self.sizes))

    def prior(self, belief) -> Normal:
        return normal(self.prior_out(jax.nn.elu(self.prior_hidden(belief))))

    def posterior(self, belief, encoding_term) -> Normal:
        hidden = self.posterior_hidden.product(belief, slice(None, self.sizes[0])) + encoding_term
        return normal(self.posterior_out(jax.nn.elu(hidden)))

    def next_belief(self, latent: Latent, action_term):
        inputs = self.inputs.product(latent.state, slice(None, self.sizes[1])) + action_term
        return self.gru(jax.nn.elu(inputs), latent.belief)

    # The parts of the two input layers that do not depend on the recurrence: multiplied once, outside the scans.
    def action_term(self, action):
        return self.inputs.product(action, slice(self.sizes[1], None)) + self.inputs.bias

    def encoding_term(self, x):
        return self.posterior_hidden.product(x, slice(self.sizes[0], None)) + self.posterior_hidden.bias

    def step(self, latent: Latent, action, x, first: Bool[Array, "*n"], noise=None) -> Latent:
        """Filter one row, for acting; the state is the posterior's mean unless standard normal noise is given."""
        latent, action = where_rows(first, jax.tree.map(jnp.zeros_like, (latent, action)), (latent, action))
        belief = self.next_belief(latent, self.action_term(action))
        posterior = self.posterior(belief, self.encoding_term(x))
        return Latent(belief, posterior.mean if noise is None else posterior.mean + posterior.std * noise)

    def observe(self, x, action, first: Bool[Array, "T B"], key) -> tuple[Latent, Normal, Normal]:
        """Filter sequences from a zero latent: sampled latents, posteriors and priors, each (T, B, ...)."""
        action, forget = self.boundary(action, first)
        noise = jax.random.normal(key, (*first.shape, self.sizes[1]))

        def step(latent, row):
            action_term, encoding_term, first, forget, noise = row
            zero = jax.tree.map(jnp.zeros_like, latent)
            latent = Latent(where_rows(forget, zero.belief, latent.belief), where_rows(first, zero.state, latent.state))
            belief = self.next_belief(latent, action_term)
            posterior = self.posterior(belief, encoding_term)
            latent = Latent(belief, posterior.mean + posterior.std * noise)
            return latent, (latent, posterior)

        rows = self.action_term(action), self.encoding_term(x), first, forget, noise
        _, (latent, posterior) = jax.lax.scan(step, self.initial(first.shape[1]), rows, unroll=self.unroll)
        return latent, posterior, self.prior(latent.belief)

    def imagine(self, start: Latent, policy, horizon: int, key):
        """Roll the prior out: `policy(latent, key) -> (action, extra)`; the H latents after `start`, and the extras."""
        state_key, policy_key = jax.random.split(key)
        noise = jax.random.normal(state_key, (horizon, *start.state.shape))

        def step(latent, row):
            noise, key = row
            action, extra = policy(latent, key)
            belief = self.next_belief(latent, self.action_term(action))
            prior = self.prior(belief)
            latent = Latent(belief, prior.mean + prior.std * noise)
            return latent, (latent, extra)

        rows = noise, jax.random.split(policy_key, horizon)
        return jax.lax.scan(step, start, rows, unroll=self.unroll)[1]


def normal(out) -> Normal:
    mean, raw = jnp.split(out, 2, -1)
    return Normal(mean, jax.nn.softplus(raw) + 0.1)
