"""Aligning the encodings of a new look with those of the old one: the paper's section 4.1, as functions of arrays.

x_s are encodings of the source, fixed; x_t those of the encoder that adapts; f_s, f_t what the dual function f says of
them; tau_s >= 0 reweights the source. Encodings have any leading axes, losses are means over them. The support
constraint asks that some reweighting of the source explains the target (Eq. 4.7, a chi-square divergence as its dual):

    min over tau >= 0, encoder   max over f, lambda    E_s[tau f] - E_t[f + f^2 / 4] + lambda (E_s[tau] - 1)

Distribution matching is the same game without tau: a GAN, whose value is the Jensen-Shannon divergence.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from undistracted.adapt.networks import Dual, Reweighting
from undistracted.optim import adam, apply

KL_RATE = 5e-3  # of the multiplier that holds f's bottleneck to its budget


def conjugate(f):
    """Of the chi-square divergence: E_p[f] - E_q[conjugate(f)] is at most chi2(p, q), reached at f = 2 (p / q - 1).

    No ratio p / q asks for an f below -2. Were the parabola to rise again there, the encoder would be driven away from
    the source wherever f overshoots.
    """
    f = jnp.maximum(f, -2)
    return f + f**2 / 4


def calibration_loss(x_s, x_t):
    """Half the squared distance between two encodings of one state, a mean over rows."""
    return 0.5 * ((x_s - x_t) ** 2).sum(-1).mean()


def lagrangian(multiplier, tau_s):
    """What lambda ascends and tau pays: a reweighting must keep the total mass."""
    return multiplier * (tau_s.mean() - 1)


def gradient_penalty(f: Callable, x_s):
    """Mean squared norm of f's gradient at the source encodings; `f` maps (*n, x) to (*n,), row by row."""
    return (jax.grad(lambda x: f(x).sum())(x_s) ** 2).sum(-1).mean()


def spread(x) -> Float[Array, ""]:
    """Mean variance of encodings over all axes but their own: it vanishes when they collapse into one point."""
    return x.reshape(-1, x.shape[-1]).var(0).mean()


class Divergence(NamedTuple):
    """The game between f and the encoder."""

    f_loss: Callable  # (f_s, f_t, tau_s) -> scalar that f minimises
    encoder_loss: Callable  # f_t -> scalar that the encoder minimises
    reweighted: bool  # whether tau plays


SUPPORT = Divergence(
    f_loss=lambda f_s, f_t, tau_s: conjugate(f_t).mean() - (tau_s * f_s).mean(),
    encoder_loss=lambda f_t: -conjugate(f_t).mean(),
    reweighted=True,
)
DISTRIBUTION = Divergence(
    f_loss=lambda f_s, f_t, tau_s: jax.nn.softplus(-f_s).mean() + jax.nn.softplus(f_t).mean(),
    encoder_loss=lambda f_t: jax.nn.softplus(-f_t).mean(),
    reweighted=False,
)
METHODS = {"support": SUPPORT, "distribution": DISTRIBUTION, "none": None}


class Rates(NamedTuple):
    """Of the four Adams: the paper's."""

    encoder: float = 3e-4
    tau: float = 5e-5
    f: float = 1e-4
    multiplier: float = 5e-3


class Players(NamedTuple):
    """All that a game changes beside the encoder."""

    f: Dual
    tau: Reweighting
    multiplier: Float[Array, ""]  # lambda
    kl_multiplier: Float[Array, ""]  # of f's bottleneck
    moments: dict  # of the Adams, that of the encoder too


class Rows(NamedTuple):
    """One batch: encodings of the source, observations of the target, and pairs of both for one state each, or None."""

    source: Float[Array, "*n x"]
    target: Array
    paired_source: Float[Array, "*m x"] | None = None
    paired_target: Array | None = None


class Aligner:
    """The alternation of f, encoder, tau and lambda.

    `alignment`, `calibration` and `dynamics` weigh the losses of the encoder, `penalty` the gradient penalty of f;
    `budget` is what the bottleneck of f may carry, in nats.
    """

    def __init__(
        self,
        divergence: Divergence | None,
        rates: Rates | None = None,
        *,
        alignment=1.0,
        calibration=1.0,
        dynamics=1.0,
        penalty=1.0,
        budget=0.1,
    ):
        self.divergence, self.alignment, self.calibration, self.dynamics = divergence, alignment, calibration, dynamics
        self.penalty, self.budget = penalty, budget
        self.optimisers = {name: adam(rate) for name, rate in (rates or Rates())._asdict().items()}

    def init(self, encoder, size: int, key, *, hidden=256, depth=2, code=64) -> Players:
        f_key, tau_key = jax.random.split(key)
        modules = {
            "f": Dual(size, f_key, hidden=hidden, depth=depth, code=code),
            "tau": Reweighting(size, tau_key, hidden=hidden, depth=depth),
            "multiplier": jnp.float32(1e-4),
        }
        moments = {name: adam.init((modules | {"encoder": encoder})[name]) for name, adam in self.optimisers.items()}
        return Players(**modules, kl_multiplier=jnp.float32(0.1), moments=moments)

    def step(self, encoder, players: Players, rows: Rows, key, violation: Callable | None = None):
        """Each player's turn: the new encoder, the new players, and what to watch.

        `violation(x_t)` is one more loss of the encoder: by how much the target's encodings break the dynamics.
        """
        f_key, encoder_key, tau_key = jax.random.split(key, 3)

        def encode(encoder):
            return jax.tree.map(encoder, (rows.target, rows.paired_target))

        x, pull_back = eqx.filter_vjp(encode, encoder)  # one pass, for f's turn and the encoder's own
        metrics = {"target_spread": spread(x[0]), "source_spread": spread(rows.source)}
        if self.divergence:
            players, watched = self._f_turn(players, rows.source, x[0], f_key)
            metrics |= watched

        def encoder_loss(x):
            losses = self._encoder_losses(*x, rows.paired_source, players.f, encoder_key, violation)
            return sum(losses.values()), losses

        gradient, losses = jax.grad(encoder_loss, has_aux=True)(x)
        encoder, players = self._applied(players, "encoder", encoder, *pull_back(gradient))
        metrics |= {f"{name}_loss": loss for name, loss in losses.items()}
        if self.divergence and self.divergence.reweighted:
            players, watched = self._tau_turn(players, rows.source, tau_key)
            metrics |= watched
        return encoder, players, metrics

    def _f_turn(self, players: Players, x_s, x_t, key):
        source_key, target_key = jax.random.split(key)
        tau_s = players.tau(x_s)

        def loss(f):
            (f_s, kl_s), (f_t, kl_t) = f(x_s, source_key), f(x_t, target_key)
            kl = (kl_s.mean() + kl_t.mean()) / 2
            penalty = gradient_penalty(lambda x: f(x, source_key)[0], x_s)
            game = self.divergence.f_loss(f_s, f_t, tau_s)
            total = game + self.penalty * penalty + players.kl_multiplier * (kl - self.budget)
            return total, {"f_loss": game, "f_kl": kl, "f_penalty": penalty}

        gradient, metrics = eqx.filter_grad(loss, has_aux=True)(players.f)
        f, players = self._applied(players, "f", players.f, gradient)
        kl_multiplier = jnp.maximum(0.0, players.kl_multiplier + KL_RATE * (metrics["f_kl"] - self.budget))
        return players._replace(f=f, kl_multiplier=kl_multiplier), metrics | {"f_kl_multiplier": kl_multiplier}

    def _encoder_losses(self, x_t, paired_x_t, paired_x_s, f: Dual, key, violation) -> dict:
        losses = {}
        if self.divergence:
            losses["alignment"] = self.alignment * self.divergence.encoder_loss(f(x_t, key)[0])
        if paired_x_t is not None:
            losses["calibration"] = self.calibration * calibration_loss(paired_x_s, paired_x_t)
        if violation:
            losses["dynamics"] = self.dynamics * violation(x_t)
        return losses

    def _tau_turn(self, players: Players, x_s, key):
        f_s = players.f(x_s, key)[0]

        def loss(tau):
            tau_s = tau(x_s)
            return (tau_s * f_s).mean() + lagrangian(players.multiplier, tau_s), tau_s

        gradient, tau_s = eqx.filter_grad(loss, has_aux=True)(players.tau)
        tau, players = self._applied(players, "tau", players.tau, gradient)
        ascent = -jax.grad(lagrangian)(players.multiplier, tau_s)
        multiplier, players = self._applied(players, "multiplier", players.multiplier, ascent)
        return players._replace(tau=tau, multiplier=multiplier), {"tau": tau_s.mean(), "lambda": multiplier}

    def _applied(self, players: Players, name: str, module, gradient):
        """The module after a step of its Adam, and the players with the new moments."""
        module, moments = apply(self.optimisers[name], gradient, players.moments[name], module)
        return module, players._replace(moments=players.moments | {name: moments})
