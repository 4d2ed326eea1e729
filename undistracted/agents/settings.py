"""What single methods let one set: `--dreamer.free-nats 1`. What several share is in `config.py`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dreamer:
    free_nats: float = 3.0
    """KL below which the model is not pushed, nats per step."""
