"""Weights & Biases, for a run with --wandb PROJECT: the scalars that TensorBoard gets, under the same names."""

import dataclasses
import importlib.util

from undistracted.config import Config
from undistracted.errors import UserError


def check_wandb(config: Config) -> None:
    if config.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError("--wandb needs the package wandb; install it with scripts/setup.sh wandb, or leave --wandb out")


class WandbLog:
    """A W&B run, named after the run directory; one that is resumed is another of the same name."""

    def __init__(self, config: Config):
        check_wandb(config)  # again: a run may be resumed elsewhere
        import wandb

        try:
            self.run = wandb.init(
                project=config.wandb,
                name=config.run_dir.name,
                dir=config.run,
                config=dataclasses.asdict(config),
                settings=wandb.Settings(console="off"),  # the terminal is the progress bar's
            )
        except wandb.Error as e:
            raise UserError(f"W&B: {str(e).rstrip('.')}; or set WANDB_MODE=offline, and wandb sync later") from None
        # W&B drops what goes back in its own count, and an evaluation is told at a later step than its own.
        self.run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: dict) -> None:
        self.run.log({"step": step} | values)

    def close(self) -> None:
        self.run.finish()
