"""What single methods let one set: `--tia.adversary 10000`. What several share is in `config.py`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TIA:
    adversary: float = 20_000.0
    """Weight of the adversary's failure to predict the reward from the distractor stream."""
    alone: float = 1.5
    """Weight of the picture that the distractor stream tells alone."""
    inner_steps: int = 20
    """Steps of the adversary before each step of the model."""


@dataclass(frozen=True)
class Denoised:
    beta: float = 0.25
    """Price of a nat of y, where one of x costs 1."""
    y_belief: int | None = None
    """Size of y's belief; that of --belief, which is x's, without it. A y-state of 0: no y at all."""
    y_state: int | None = None
    """Size of y's stochastic state; that of --state without it."""
    linear: bool = False
    """A linear layer behind the convolutions."""
    relu: bool = False
    """A ReLU behind the decoder's linear layer."""


@dataclass(frozen=True)
class SAC:
    frames: int = 3
    """Frames that are stacked into one observation."""
    latent: int = 50
    """Size of the latent z."""
    alpha0: float = 0.1
    """Initial temperature."""
    alpha_lr: float = 1e-4
    """Adam's rate for log alpha."""
    actor_every: int = 2
    """Updates per step of actor and temperature."""
    target_every: int = 2
    """Updates per step of the slow copies."""
    critic_tau: float = 0.01
    """How far the slow copy of the critic moves."""
    encoder_tau: float = 0.05
    """How far the slow copy of the encoder moves."""
    model_hidden: int = 512
    """Width of transition and reward model."""
    decay: float = 1e-7
    """Weight decay of transition and reward model."""


@dataclass(frozen=True)
class DeepMDP:
    transition: Literal["deterministic", "probabilistic", "ensemble"] = "deterministic"
    """The model of the next latent."""


@dataclass(frozen=True)
class DBC:
    transition: Literal["deterministic", "probabilistic", "ensemble"] = "deterministic"
    """The model of the next latent."""
    bisimulation: float = 0.5
    """Weight of the bisimulation loss."""


@dataclass(frozen=True)
class TDMPC:
    frames: int = 3
    """Frames that are stacked into one observation."""
    latent: int = 50
    """Size of the latent z."""
    samples: int = 512
    """Action sequences drawn in each round of planning."""
    proposals: int = 25
    """Action sequences of the policy beside them."""
    elites: int = 64
    """Sequences that the next round is drawn around."""
    rounds: int = 6
    """Rounds of planning per decision."""
    temperature: float = 0.5
    """Elites are weighted by exp(temperature x value)."""
    momentum: float = 0.1
    """Of the plan's mean, from round to round."""
    schedule: int = 25_000
    """Steps over which the plan grows to the full horizon and its least std shrinks to the last."""
    first_std: float = 0.5
    """Least std of a plan at first."""
    last_std: float = 0.05
    """Least std of a plan in the end."""
    policy_std: float = 0.05
    """Std of the policy's noise."""
    shift: int = 3
    """Pixels by which pictures are moved at most."""
    rho: float = 0.5
    """Weight of each further step of a window."""
    consistency: float = 2.0
    """Weight of the next latent's loss."""
    reward: float = 0.5
    """Weight of the reward's loss."""
    value: float = 0.1
    """Weight of the value's loss."""
    tau: float = 0.01
    """How far the slow copies move."""
    target_every: int = 2
    """Updates per step of the slow copies."""
    plan_every: int = 100
    """Updates between plans from the batch that are made for the log."""
