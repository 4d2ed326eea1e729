"""TD-MPC: plans in a latent model that is learned from rewards, values and its own next latents, and from no picture.

The model is TOLD (`told.py`), the planner MPPI (`planning.py`): plans are worth the model's rewards and, at their end,
its values; a policy that climbs the values proposes some of them, and is what the values are of.
`docs/agents/tdmpc.md` has the equations, the metrics and every departure.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, Int, UInt8

from undistracted.agents import settings
from undistracted.agents.latent import gradient, reduce_losses
from undistracted.agents.told import Model, Pi, Slow, plan_value, policy_loss, proposals, told_losses
from undistracted.augment import random_shift
from undistracted.data import IMAGE, where_rows
from undistracted.errors import UserError
from undistracted.optim import adam, apply, follow
from undistracted.planning import Plan, draw, linear, mppi, warm_start
from undistracted.priorities import Windows, windows
from undistracted.replay import Replay, push, stack
from undistracted.seeds import in_lockstep

WATCHED = 4  # latents of a batch that are planned from for the log
PAPER = dict(
    updates_per_step=1.0,
    warm_up_updates=5_000,
    batch=256,
    length=8,
    horizon=5,
    channels=(32, 32, 32, 32),
    hidden=512,
    model_lr=3e-4,
    actor_lr=3e-4,
    clip=10.0,
)
PRESETS = {
    "paper": PAPER,
    "original": PAPER | dict(steps=1_500_000, replay_size=1_500_000),
    "small": PAPER
    | dict(
        updates_per_step=0.5,
        warm_up_updates=1_000,
        batch=32,
        channels=(16, 16, 16),
        hidden=128,
        model_lr=1e-3,
        actor_lr=1e-3,
        tdmpc=settings.TDMPC(samples=64, proposals=8, elites=16, rounds=3, schedule=10_000),
    ),
    "debug": dict(
        length=8, horizon=5, tdmpc=settings.TDMPC(latent=8, samples=16, proposals=4, elites=4, rounds=2, schedule=100)
    ),
}
DOMAINS = {
    "humanoid": dict(tdmpc=settings.TDMPC(latent=100, rounds=12)),
    "dog": dict(tdmpc=settings.TDMPC(latent=100, rounds=8), batch=2048),
}


class Policy(NamedTuple):
    """All that acting needs."""

    model: Model
    pi: Pi
    updates: Int[Array, ""]  # decide how far ahead and how widely it plans


class State(NamedTuple):
    """All that learning changes."""

    policy: Policy
    slow: Slow
    moments: dict
    watched: dict  # metrics of the last plan for the log


class Carry(NamedTuple):
    """What the planner remembers from one row to the next."""

    frames: UInt8[Array, "n 64 64 c"]
    mean: Float[Array, "n H A"]
    count: Int[Array, ""]


class TDMPC:
    def __init__(self, config, action_size: int):
        self.config, self.action_size, s = config, action_size, config.tdmpc
        if s.elites > s.samples + s.proposals:
            raise UserError(f"--tdmpc.elites {s.elites} are more than {s.samples} samples and {s.proposals} proposals")
        self.window = config.tdmpc.frames - 1, config.horizon
        scale = optax.scale(1 / config.horizon)  # before the clip
        self.optimisers = {
            "model": optax.chain(scale, adam(config.model_lr, config.clip)),
            "pi": adam(config.actor_lr, config.clip),
        }

    def init(self, key) -> State:
        k1, k2 = jax.random.split(key)
        model, pi = Model(self.config, self.action_size, k1), Pi(self.config, self.action_size, k2)
        modules = {"model": model, "pi": pi}
        moments = {name: optimiser.init(modules[name]) for name, optimiser in self.optimisers.items()}
        slow = jax.tree.map(jnp.copy, Slow(model.encoder, model.values))
        watched = dict.fromkeys(("plan_value", "proposal_value", "plan_std", "plan_horizon"), jnp.float32(0))
        return State(Policy(model, pi, jnp.int32(0)), slow, moments, watched)

    def initial_carry(self, policy: Policy, n: int) -> Carry:
        frames = jnp.zeros((n, *IMAGE[:2], 3 * self.config.tdmpc.frames), jnp.uint8)
        return Carry(frames, jnp.zeros((n, self.config.horizon, self.action_size)), jnp.int32(0))

    def act(self, policy: Policy, carry: Carry, obs, first, key=None) -> tuple[Float[Array, "n A"], Carry]:
        """Plan from n stacks of frames, each from its last plan; given a key, with noise as wide as the plan."""
        frames, n = push(carry.frames, obs, first), len(obs)
        mean = where_rows(first, jnp.zeros_like(carry.mean), carry.mean)
        if key is None:  # the planner's own draws, alike for all environments and in every run
            keys = jnp.broadcast_to(jax.random.fold_in(jax.random.key(0), carry.count), (n,))
        else:
            keys = jax.random.split(key, n)
        plan_key, draw_key, noise_key = jax.vmap(lambda k: jax.random.split(k, 3), out_axes=1)(keys)
        horizon = self.horizon(policy)
        mean = jax.vmap(lambda mean: warm_start(mean, horizon))(mean)
        plan, _ = jax.vmap(self.plan, (None, 0, 0, 0))(policy, policy.model.encoder(frames), mean, plan_key)
        action = jax.vmap(draw)(plan, draw_key)
        if key is not None:
            noise = jax.vmap(lambda k: jax.random.normal(k, (self.action_size,)))(noise_key)
            action += plan.std[:, 0] * noise
        return jnp.clip(action, -1, 1), Carry(frames, plan.mean, carry.count + 1)

    def plan(self, policy: Policy, z, mean, key) -> tuple[Plan, Float[Array, ""]]:
        """The plan from one latent, begun from a mean, and what the policy's own proposals are worth."""
        c, s, (model, pi, _) = self.config, self.config.tdmpc, policy
        value_key, proposal_key, plan_key = jax.random.split(key, 3)

        def value(actions):
            noise = s.policy_std * jax.random.normal(value_key, (len(actions), self.action_size))
            return plan_value(model, pi, z, actions, noise, self.horizon(policy), c.gamma, c.unroll)

        noise = s.policy_std * jax.random.normal(proposal_key, (s.proposals, *mean.shape))
        proposed = proposals(model, pi, z, noise, c.unroll)
        floor = linear(s.first_std, s.last_std, self.progress(policy))
        return mppi(value, mean, proposed, floor, plan_key, s), value(proposed).mean()

    def progress(self, policy: Policy):
        """Through the planner's schedule, whose steps are told by the updates."""
        return policy.updates / max(self.config.updates_per_step * self.config.tdmpc.schedule, 1e-9)

    def horizon(self, policy: Policy) -> Int[Array, ""]:
        """Steps that plans look ahead: 1 at first, the full horizon after the schedule."""
        return linear(1, self.config.horizon, self.progress(policy)).astype(int)

    def sample(self, replay: Replay, key) -> Windows:
        return windows(replay, key, *self.window, self.config.batch)

    def update(self, state: State, drawn: Windows, key) -> tuple[State, dict, Float[Array, "B"]]:
        """One step of the model, one of the policy in the new model, and every other time one of the slow copies."""
        c, s, (model, pi, updates) = self.config, self.config.tdmpc, state.policy
        shift_key, target_key, policy_key, plan_key = jax.random.split(key, 4)
        batch = stack(drawn.rows, s.frames)
        batch = batch._replace(obs=random_shift(shift_key, batch.obs, s.shift))
        following = model.encoder(batch.obs[1:])
        shape = *batch.reward.shape, self.action_size
        noise = s.policy_std * jax.random.normal(target_key, (c.horizon, *shape[1:]))

        def model_loss(model):
            losses, z, error = told_losses(model, state.slow, pi, batch, following, noise, c)
            return *reduce_losses({name: drawn.weight * loss for name, loss in losses.items()}), (z, error)

        grads, metrics, (z, error) = gradient(model_loss, model)
        moments = {}
        model, moments["model"] = apply(self.optimisers["model"], grads, state.moments["model"], model)
        metrics |= {"model_gradient": optax.tree.norm(grads) / c.horizon}

        noise = s.policy_std * jax.random.normal(policy_key, shape)

        def loss_of_policy(pi):
            return *reduce_losses({"policy": policy_loss(pi, model.values, z, noise, s.rho)}), None

        grads, means, _ = gradient(loss_of_policy, pi)
        pi, moments["pi"] = apply(self.optimisers["pi"], grads, state.moments["pi"], pi)
        due = updates % s.target_every == 0
        slow = follow(state.slow, Slow(model.encoder, model.values), due * s.tau)
        policy = Policy(model, pi, updates + 1)
        due = updates % s.plan_every == 0
        watched = in_lockstep(self.watch)(due, state.watched, policy, sg(z[0, :WATCHED]), plan_key)
        metrics |= means | watched | watched_latents(z, following, error)
        return State(policy, slow, moments, watched), metrics, error

    def watch(self, watched: dict, policy: Policy, z, key) -> dict:
        """What plans from these latents promise, and what the policy's do."""
        mean = jnp.zeros((self.config.horizon, self.action_size))
        plan, proposed = jax.vmap(lambda z, key: self.plan(policy, z, mean, key))(z, jax.random.split(key, len(z)))
        return {
            "plan_value": (plan.weight * plan.value).sum(-1).mean(),
            "proposal_value": proposed.mean(),
            "plan_std": plan.std[:, 0].mean(),
            "plan_horizon": self.horizon(policy).astype(jnp.float32),
        }


def watched_latents(z, following, error) -> dict:
    """Variances of seen and of predicted latents, which vanish with the consistency loss where the model collapses."""
    variances = {"latent_variance": following.var(1).mean(), "predicted_variance": z[1:].var(1).mean()}
    return variances | {"error": error.mean()}
