"""What single methods let one set: `--dreamer.free-nats 1`. What several share is in `config.py`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Dreamer:
    free_nats: float = 3.0
    """KL below which the model is not pushed, nats per step."""


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
