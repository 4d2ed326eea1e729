"""A trained agent for use elsewhere: load a run, act on pictures."""

from pathlib import Path

import jax
import numpy as np

from undistracted.agents.latent import Carry, LatentAgent, Policy
from undistracted.checkpoint import load_learner
from undistracted.config import Config
from undistracted.data import IMAGE
from undistracted.errors import UserError


class Deployed:
    """Acts on one observation, or on a batch of them, filtering what it has seen.

    carry = None                                      # before an episode's first observation
    action, carry = agent.act(observation, carry)     # uint8 (64, 64, 3) -> float32 (A,) in [-1, 1]
    """

    def __init__(self, agent: LatentAgent, policy: Policy, seed: int = 0):
        self.agent, self.policy, self.key = agent, policy, jax.random.key(seed)
        self._act = jax.jit(agent.act)

    def act(self, observation, carry: Carry | None = None, *, sample: bool = False) -> tuple[np.ndarray, Carry]:
        """The mean action of the mean latent, or samples of both."""
        obs = np.asarray(observation)
        if obs.dtype != np.uint8 or obs.shape[-3:] != IMAGE or obs.ndim > 4:
            raise ValueError(f"expected uint8 pictures of shape {IMAGE}, got {obs.dtype} {obs.shape}")
        batch = obs.reshape(-1, *IMAGE)
        first = np.full(len(batch), carry is None)
        carry = self.agent.initial_carry(self.policy, len(batch)) if carry is None else carry
        key = None
        if sample:
            self.key, key = jax.random.split(self.key)
        action, carry = self._act(self.policy, carry, batch, first, key)
        return np.asarray(action).reshape(*obs.shape[:-3], -1), carry


def load(run: str | Path, seed: int | None = None) -> Deployed:
    """The agent of a run's newest checkpoint; of a run with several seeds, the first, or the one named."""
    config = Config.load_run(Path(run))
    learner, _ = load_learner(Path(run), config)
    index = 0 if seed is None else seed - config.seed
    if not 0 <= index < config.seeds:
        raise UserError(f"{run} has no seed {seed}; its seeds are {config.seed} to {config.seed + config.seeds - 1}")
    return Deployed(learner.agent, jax.tree.map(lambda x: x[index], learner.state.policy))
