"""What single methods let one set: `--tia.adversary 10000`. What several share is in `config.py`."""

from dataclasses import dataclass


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
