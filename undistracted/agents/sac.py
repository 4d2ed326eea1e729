"""Soft actor-critic from stacked frames, whose encoder also learns by an auxiliary loss: what DeepMDP and DBC share.

The critic owns the encoder: convolutions and a projection to the latent z. The actor looks through the same
convolutions, by a projection of its own, and never trains them. The auxiliary is a module with
`losses(z, next_z, action, reward, key)`. Episodes end by a time limit, so their last observation has a value too.
`docs/agents/deepmdp.md` has the equations.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.lax import stop_gradient as sg
from jaxtyping import Array, Float, Int, UInt8

from undistracted.agents import settings
from undistracted.agents.latent import gradient, reduce_losses
from undistracted.agents.sac_nets import WINDOWS, Actor, Critic, Projection
from undistracted.convs import Convs, delta_orthogonal
from undistracted.data import IMAGE, Batch
from undistracted.dists import squash
from undistracted.initial import orthogonal
from undistracted.nets import MLP, relu
from undistracted.optim import adam, apply, follow
from undistracted.replay import Replay, push, stack, transitions
from undistracted.seeds import in_lockstep

PAPER = dict(
    envs=4,  # the source has one
    prefill=1_000,
    updates_per_step=1.0,
    warm_up_updates=1_000,
    batch=128,
    length=4,
    channels=(32, 32, 32, 32),
    hidden=1024,
    model_lr=1e-3,
    actor_lr=1e-3,
    critic_lr=1e-3,
)
PRESETS = {
    "paper": PAPER,
    "original": PAPER | dict(steps=1_000_000, replay_size=1_000_000),
    # Of 24,000 updates most would be lost to the entropy if alpha fell as slowly as in 500,000.
    "small": PAPER
    | dict(envs=2, updates_per_step=0.5, batch=32, channels=(8, 8, 8, 8), hidden=128, sac=settings.SAC(alpha_lr=1e-3)),
    "debug": dict(length=4, sac=settings.SAC(latent=8, model_hidden=16)),
}


class Policy(NamedTuple):
    """All that acting needs."""

    convs: Convs  # the critic's
    actor: Actor


class State(NamedTuple):
    """All that learning changes."""

    policy: Policy
    critic: Critic
    target: tuple[Convs, Critic]
    auxiliary: Any
    log_alpha: Float[Array, ""]
    moments: dict
    updates: Int[Array, ""]
    watched: dict  # metrics of the actor's last step


class SAC:
    def __init__(self, auxiliary, config, action_size: int):
        self.auxiliary, self.config, self.action_size = auxiliary, config, action_size
        c = config
        self.optimisers = {
            "critic": adam(c.critic_lr),
            "encoder": adam(c.model_lr),
            "auxiliary": optax.chain(optax.add_decayed_weights(c.sac.decay), optax.adam(c.model_lr)),
            "actor": adam(c.actor_lr),
            "alpha": optax.adam(c.sac.alpha_lr, b1=0.5),
        }

    def init(self, key) -> State:
        c, k = self.config, jax.random.split(key, 7)
        latent, dtype = c.sac.latent, c.precision
        convs = Convs(c, c.sac.frames, WINDOWS, delta_orthogonal, k[0])

        def mlp(inputs, outputs, key):
            return MLP(inputs, c.hidden, 2, outputs, key, dtype, relu)

        heads = [mlp(latent + self.action_size, 1, key) for key in k[1:3]]
        critic = orthogonal(Critic(Projection(convs.size, latent, k[3], dtype), heads), k[3])
        trunk = mlp(latent, 2 * self.action_size, k[4])
        actor = orthogonal(Actor(Projection(convs.size, latent, k[5], dtype), trunk), k[5])
        auxiliary = self.auxiliary(c, self.action_size, k[6])
        log_alpha = jnp.log(jnp.float32(c.sac.alpha0))
        modules = {
            "critic": (convs, critic),
            "encoder": (convs, critic.projection),
            "auxiliary": auxiliary,
            "actor": actor,
            "alpha": log_alpha,
        }
        moments = {name: optimiser.init(modules[name]) for name, optimiser in self.optimisers.items()}
        watched = dict.fromkeys(("actor_loss", "alpha_loss", "policy_entropy"), jnp.float32(0))
        target = jax.tree.map(jnp.copy, (convs, critic))
        return State(Policy(convs, actor), critic, target, auxiliary, log_alpha, moments, jnp.int32(0), watched)

    def initial_carry(self, policy: Policy, n: int) -> UInt8[Array, "n 64 64 c"]:
        return jnp.zeros((n, *IMAGE[:2], 3 * self.config.sac.frames), jnp.uint8)

    def act(self, policy: Policy, carry, obs, first, key=None):
        """Act on n stacks of frames, of which the carry holds the older ones: by tanh(mean), or by samples."""
        carry = push(carry, obs, first)
        dist = policy.actor(policy.convs(carry))
        if key is None:
            return jnp.tanh(dist.mean), carry
        return squash(dist, jax.random.normal(key, dist.mean.shape))[0], carry

    def sample(self, replay: Replay, key) -> Batch:
        return transitions(replay, key, self.config.sac.frames - 1, self.config.batch)

    def update(self, state: State, batch: Batch, key) -> tuple[State, dict]:
        """One step of the critic and one of the auxiliary; every other time also of actor, temperature and copies."""
        s = self.config.sac
        batch = stack(batch, s.frames)
        critic_key, auxiliary_key, actor_key = jax.random.split(key, 3)
        state, metrics = self.update_critic(state, batch, critic_key)
        state, more = self.update_auxiliary(state, batch, auxiliary_key)
        due = state.updates % s.actor_every == 0
        state = in_lockstep(self.update_actor)(due, state, batch.obs[0], actor_key)
        convs, critic = state.target
        due = state.updates % s.target_every == 0
        encoder = follow((convs, critic.projection), (state.policy.convs, state.critic.projection), due * s.encoder_tau)
        heads = follow(critic.heads, state.critic.heads, due * s.critic_tau)
        state = state._replace(target=(encoder[0], Critic(encoder[1], heads)), updates=state.updates + 1)
        return state, metrics | more | state.watched | {"alpha": jnp.exp(state.log_alpha)}

    def update_critic(self, state: State, batch: Batch, key) -> tuple[State, dict]:
        (convs, actor), (obs, next_obs), gamma = state.policy, batch.obs, self.config.gamma
        dist = actor(convs(next_obs))
        next_action, log_prob = squash(dist, jax.random.normal(key, dist.mean.shape))
        next_value = target_value(*state.target, next_obs, next_action) - jnp.exp(state.log_alpha) * log_prob
        target = batch.reward[1] + gamma * next_value

        def loss(modules):
            convs, critic = modules
            q = critic(critic.projection(convs(obs)), batch.action[1])
            return *reduce_losses({"critic": ((q - target) ** 2).sum(0)}), q

        grads, metrics, q = gradient(loss, (convs, state.critic))
        moments = dict(state.moments)
        (convs, critic), moments["critic"] = apply(
            self.optimisers["critic"], grads, moments["critic"], (convs, state.critic)
        )
        metrics |= {"value": q.mean(), "target_value": target.mean(), "critic_gradient": optax.tree.norm(grads)}
        return state._replace(policy=Policy(convs, actor), critic=critic, moments=moments), metrics

    def update_auxiliary(self, state: State, batch: Batch, key) -> tuple[State, dict]:
        """The encoder is moved by a second Adam here; the next latent is the encoder's own, held still."""
        (convs, actor), (obs, next_obs) = state.policy, batch.obs
        next_z = state.critic.projection(convs(next_obs))

        def loss(modules):
            (convs, projection), auxiliary = modules
            z = projection(convs(obs))
            losses, metrics = auxiliary.losses(z, next_z, batch.action[1], batch.reward[1], key)
            return *reduce_losses(losses), metrics | {"latent_std": z.std(0).mean()}

        encoder = convs, state.critic.projection
        (encoder_grads, grads), means, metrics = gradient(loss, (encoder, state.auxiliary))
        moments = dict(state.moments)
        (convs, projection), moments["encoder"] = apply(
            self.optimisers["encoder"], encoder_grads, moments["encoder"], encoder
        )
        auxiliary, moments["auxiliary"] = apply(
            self.optimisers["auxiliary"], grads, moments["auxiliary"], state.auxiliary
        )
        critic = Critic(projection, state.critic.heads)
        state = state._replace(policy=Policy(convs, actor), critic=critic, auxiliary=auxiliary, moments=moments)
        return state, means | metrics

    def update_actor(self, state: State, obs, key) -> State:
        """The actor climbs the smaller value plus its entropy; alpha steers the entropy towards -A."""
        seen = state.policy.convs(obs)
        z, alpha = state.critic.projection(seen), jnp.exp(state.log_alpha)
        noise = jax.random.normal(key, (len(seen), self.action_size))

        def loss(modules):
            actor, log_alpha = modules
            action, log_prob = squash(actor(seen), noise)
            losses = {
                "actor": alpha * log_prob - state.critic(z, action).min(0),
                "alpha": -jnp.exp(log_alpha) * sg(log_prob - self.action_size),
            }
            return *reduce_losses(losses), {"policy_entropy": -log_prob.mean()}

        modules = {"actor": state.policy.actor, "alpha": state.log_alpha}
        grads, means, metrics = gradient(loss, tuple(modules.values()))
        moments = dict(state.moments)
        for (name, module), grad in zip(modules.items(), grads, strict=True):
            modules[name], moments[name] = apply(self.optimisers[name], grad, moments[name], module)
        policy = state.policy._replace(actor=modules["actor"])
        return state._replace(policy=policy, log_alpha=modules["alpha"], moments=moments, watched=means | metrics)


def target_value(convs: Convs, critic: Critic, obs, action) -> Float[Array, "B"]:
    return critic(critic.projection(convs(obs)), action).min(0)
