"""An agent that learns its behaviour in the imagination of a world model, and acts by filtering with it.

What is particular to a method is its world model (`model.py`).
"""

from collections import OrderedDict
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from undistracted import parts
from undistracted.augment import random_shift
from undistracted.behaviour import PLAIN, Actor, Way, behaviour_losses
from undistracted.data import Batch, flatten_rows
from undistracted.errors import UserError
from undistracted.initial import INITIAL
from undistracted.kernels import dream as kernels
from undistracted.kernels import launch
from undistracted.nets import Scalar
from undistracted.optim import adam, apply
from undistracted.replay import Replay, sequences
from undistracted.rssm import Latent


class Policy(NamedTuple):
    """All that acting needs: what a deployment loads and an evaluation copies."""

    model: Any
    actor: Actor


class State(NamedTuple):
    """All that learning changes."""

    policy: Policy
    critic: Scalar
    moments: dict  # of the Adams of model, actor and critic


class Carry(NamedTuple):
    """What the policy remembers from one row to the next."""

    latent: Latent
    action: Float[Array, "*n A"]


class LatentAgent:
    def __init__(self, world_model, config, action_size: int):
        self.world_model, self.config, self.action_size = world_model, config, action_size
        if config.horizon - config.official_horizon < 2:
            raise UserError(f"--horizon {config.horizon} leaves no return to imagine; use --horizon 2 or more")
        self.optimisers = {
            "model": world_model.optimiser(config),
            "actor": adam(config.actor_lr, config.clip, config.adam_eps),
            "critic": adam(config.critic_lr, config.clip, config.adam_eps),
        }

    def init(self, key) -> State:
        c, k = self.config, jax.random.split(key, 4)
        features, width = c.belief + c.state, c.width or c.hidden
        model = self.world_model(c, self.action_size, k[0])
        stds = dict(std=c.actor_std, min_std=c.actor_min_std)
        actor = Actor(features, self.action_size, hidden=width, key=k[1], dtype=c.precision, **stds)
        critic = Scalar(features, width, 3, k[2], c.precision)
        model, actor, critic = INITIAL[c.initial]((model, actor, critic), k[3])
        modules = {"model": model, "actor": actor, "critic": critic}
        moments = {name: optimiser.init(modules[name]) for name, optimiser in self.optimisers.items()}
        return State(Policy(model, actor), critic, moments)

    def initial_carry(self, policy: Policy, n: int) -> Carry:
        return Carry(policy.model.rssm.initial(n), jnp.zeros((n, self.action_size)))

    def act(self, policy: Policy, carry: Carry, obs, first, key=None) -> tuple[Float[Array, "n A"], Carry]:
        """Filter n observations and act on them: by the means of posterior and policy, or, given a key, by samples
        with the exploration's noise."""
        latent_noise = action_noise = None
        if key is not None:
            latent_key, action_key = jax.random.split(key)
            latent_noise = jax.random.normal(latent_key, carry.latent.state.shape)
            action_noise = jax.random.normal(action_key, carry.action.shape)
        x = policy.model.encoder(obs)
        latent = policy.model.rssm.step(carry.latent, carry.action, x, first, latent_noise)
        action = policy.actor.act(policy.model.rssm.task(latent).features, action_noise)
        if key is not None and self.config.exploration:
            noise = jax.random.normal(jax.random.fold_in(action_key, 1), action.shape)
            action = jnp.clip(action + self.config.exploration * noise, -1, 1)
        return action, Carry(latent, action)

    def sample(self, replay: Replay, key) -> Batch:
        place_key, shift_key = jax.random.split(key)
        batch = sequences(replay, place_key, self.config.length, self.config.batch)
        if self.config.shift:
            batch = batch._replace(obs=random_shift(shift_key, batch.obs, self.config.shift))
        return batch

    def update(self, state: State, batch: Batch, key) -> tuple[State, dict]:
        """One gradient step: world model, then actor and critic in the imagination of the new model."""
        (model, actor), critic = state.policy, state.critic
        model_key, behaviour_key = jax.random.split(key)
        model, model_moments = model.prepare(state.moments["model"], batch, model_key)

        def model_loss(model):
            z, losses, metrics = model.losses(batch, model_key)
            return *reduce_losses(losses), (z, metrics)

        grads, means, (z, watched) = gradient(model_loss, model)
        moments = {}
        model, moments["model"] = apply(self.optimisers["model"], grads, model_moments, model)
        metrics = means | watched | {"model_gradient": optax.tree.norm((grads.encoder, grads.rssm, grads.reward))}

        start = in_eights(flatten_rows(jax.tree.map(lambda x: x[:: self.config.start_every], z)))
        way = self.way(actor, critic, model)
        imagined = self.dream(actor, critic, model, start, behaviour_key)

        def behaviour_gradient(modules, imagined):
            def behaviour_loss(modules):
                losses, metrics = behaviour_losses(*modules, imagined, self.config.entropy_bonus, way)
                return *reduce_losses(losses), metrics

            return gradient(behaviour_loss, modules)

        grads, means, watched = way.over_seeds(behaviour_gradient)((actor, critic), imagined)
        metrics |= means | watched
        modules = {}
        for name, module, grad in zip(("actor", "critic"), (actor, critic), grads, strict=True):
            modules[name], moments[name] = apply(self.optimisers[name], grad, state.moments[name], module)
            metrics[f"{name}_gradient"] = optax.tree.norm(grad)
        state = State(Policy(model, modules["actor"]), modules["critic"], moments)
        return state, parts.mean(metrics)

    def parts(self, most: int) -> int:
        """Into how many a batch may be cut, at most `most`: equal ones, each with a whole number of eights to imagine
        from, or `in_eights` would drop other starts than of the whole batch."""
        c = self.config
        starts = len(range(0, c.length, c.start_every))
        return max(n for n in range(1, most + 1) if n == 1 or c.batch % n == 0 and c.batch // n * starts % 8 == 0)

    def way(self, actor, critic, model) -> Way:
        by_kernels = launch.wanted(self.config) and kernels.fits(actor, critic, model)
        return kernels.FUSED if by_kernels else PLAIN

    def dream(self, actor, critic, model, start: Latent, key):
        c = self.config
        horizon = c.horizon - c.official_horizon  # the released code imagines one latent less
        returns = dict(gamma=c.gamma, lambda_=c.return_lambda, discounted=c.discount_weights)
        by = self.way(actor, critic, model).dream
        return by(actor, critic, model, start, key, horizon=horizon, **returns)

    def pictures(self, policy: Policy, batch: Batch) -> dict:
        """What the model makes of one sequence (T, 1), as films by name, uint8 (T, 64, 64, 3), in the model's order."""
        return OrderedDict(policy.model.pictures(batch, jax.random.key(0)))


def in_eights(rows):
    """As many of the rows as whole eights hold: of 2500 latents, 2496. A GPU would copy every array of an odd number of
    rows to fill it up before each product."""
    n = len(jax.tree.leaves(rows)[0])
    return jax.tree.map(lambda x: x[: n - n % 8 if n > 8 else n], rows)


def reduce_losses(losses: dict) -> tuple[Float[Array, ""], dict]:
    """The one scalar that is differentiated, and the mean of each term for the log."""
    means = {f"{name}_loss": loss.mean() for name, loss in losses.items()}
    return sum(means.values()), means


def gradient(loss, modules):
    """Gradient of `loss(modules) -> (scalar, means, extra)`, with the means and the extra."""

    def objective(modules):
        scalar, means, extra = loss(modules)
        return scalar, (means, extra)

    grads, (means, extra) = eqx.filter_grad(objective, has_aux=True)(modules)
    return parts.mean(grads), means, extra
