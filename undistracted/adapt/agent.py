"""The agent that adapts: it acts as the one it was, and its update moves the encoder alone."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from undistracted.adapt.align import METHODS, Aligner, Players, Rates, Rows
from undistracted.adapt.config import AdaptConfig
from undistracted.agents.latent import LatentAgent, Policy
from undistracted.data import Batch
from undistracted.dists import kl


class State(NamedTuple):
    """The source agent's state, of which only `policy.model.encoder` changes, and the players of the alignment."""

    policy: Policy
    critic: Any
    moments: dict
    players: Players


class Data(NamedTuple):
    """What an update draws from, beside rows of the new look."""

    source: Float[Array, "N x"]  # in half precision
    paired_source: Float[Array, "P x"] | None
    paired_target: UInt8[Array, "P 64 64 3"] | None


class AdaptingAgent:
    """Acts as the agent does; its update moves the encoder and nothing else."""

    def __init__(self, agent: LatentAgent, options: AdaptConfig):
        o, self.agent = options, agent
        self.act, self.initial_carry, self.action_size = agent.act, agent.initial_carry, agent.action_size
        self.sample, self.pictures = agent.sample, agent.pictures
        self.dynamics_kl = o.dynamics_kl
        self.sizes = dict(hidden=o.hidden, depth=o.depth, code=o.code)
        self.aligner = Aligner(
            METHODS[o.method],
            Rates(o.encoder_lr, o.tau_lr, o.f_lr, o.lambda_lr),
            alignment=o.alignment_weight,
            calibration=o.calibration_weight,
            dynamics=o.dynamics_weight,
            penalty=o.penalty,
            budget=o.budget,
        )

    def init(self, key) -> State:
        state = self.agent.init(key)
        encoder = state.policy.model.encoder
        return State(*state, self.aligner.init(encoder, encoder.size, key, **self.sizes))

    def update(self, state: State, batch: Batch, key, data: Data) -> tuple[State, dict]:
        """One turn of every player on as many rows of each kind as the batch has."""
        model = state.policy.model
        source_key, pairs_key, dynamics_key, key = jax.random.split(key, 4)

        def draw(arrays, key):
            picked = jax.random.randint(key, batch.first.shape, 0, len(arrays[0]))
            return [x[picked] for x in arrays]

        (x_s,) = draw([data.source], source_key)
        pairs = draw(data[1:], pairs_key) if data.paired_source is not None else ()
        rows = Rows(x_s.astype(jnp.float32), batch.obs, *pairs)
        violation = partial(dynamics_violation, model.rssm, batch, dynamics_key) if self.dynamics_kl else None
        encoder, players, metrics = self.aligner.step(model.encoder, state.players, rows, key, violation)
        policy = state.policy._replace(model=eqx.tree_at(lambda model: model.encoder, model, encoder))
        return state._replace(policy=policy, players=players), metrics


def dynamics_violation(rssm, batch: Batch, key, x) -> Float[Array, ""]:
    """What the frozen dynamics do not foresee of the encodings: KL of posterior and prior, nats per step."""
    _, posterior, prior = rssm.observe(x, batch.action, batch.first, key)
    return kl(posterior, prior).mean()
