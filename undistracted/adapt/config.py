"""The settings of an adaptation, its presets, and the six variants of the paper as rows of one table."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from undistracted.errors import UserError
from undistracted.files import read_json, write_whole


@dataclass(frozen=True)
class AdaptConfig:
    """Adapt a run's encoder, and nothing else, to a new look of its task, without rewards. Steps are agent steps."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directory of the trained agent; an adapted one too."""
    task: str
    """The new look, e.g. distracted/walker-walk for a run on dmc/walker-walk."""
    preset: Literal["paper", "official", "debug"] = "paper"
    """Sizes and rates: the paper's, or the released code's (4 hidden layers, f's rate 3e-4, calibration 1/1024); debug
    is a minute that adapts nothing."""
    method: Literal["support", "distribution", "none"] = "support"
    """How the target's encodings are held to the source's: within their support, by their distribution, or not."""
    calibration: int = 10
    """Paired trajectories, one state in both looks; 0 for none."""
    calibration_policy: Literal["source", "random"] = "source"
    """What drives the paired trajectories: the trained agent, seeing the old look, or random actions."""
    pairs: str | None = None
    """Pairs recorded elsewhere instead of paired trajectories: an .npz of pictures, `source` and `target`."""
    held_out: int = 2
    """Paired trajectories on which the distance of encodings is measured; 0 where looks cannot be paired."""
    dynamics_kl: bool = False
    """Also minimise the KL between posterior and prior of the frozen dynamics (ILA)."""
    steps: int = 50_000
    """Agent steps to adapt for."""
    videos: str | None = None
    """Folder of background videos; the source's without it."""
    protocol: Literal["random", "official"] | None = None
    """Backgrounds of the new look; the source's protocol without it."""
    render: Literal["fast", "faithful"] | None = None
    """Rendering of the new look; the source's without it."""
    color: bool | None = None
    """Colour video in the new look; as in the source without it."""
    run: str | None = None
    """Run directory of the adapted agent; SOURCE-FAMILY-VARIANT without it."""
    resume: bool = False
    """Go on from the newest checkpoint of the adapted run; named by --run, it knows its task."""
    collect_source: int = 0
    """Steps of the source's policy in the old look whose encodings stand for the source; 0 takes the saved replay."""

    # Alignment
    hidden: int = 256
    """Width of f and tau."""
    depth: int = 2
    """Hidden layers of f and tau."""
    code: int = 64
    """Size of f's bottleneck."""
    budget: float = 0.1
    """What f's bottleneck may carry, nats."""
    penalty: float = 1.0
    """Weight of f's gradient penalty."""
    alignment_weight: float = 1.0
    """Weight of the method's own loss."""
    calibration_weight: float = 1.0
    """Weight of the calibration."""
    dynamics_weight: float = 1.0
    """Weight of the dynamics' KL."""
    encoder_lr: float = 3e-4
    """Adam's rate for the encoder."""
    tau_lr: float = 5e-5
    """Adam's rate for tau."""
    f_lr: float = 1e-4
    """Adam's rate for f."""
    lambda_lr: float = 5e-3
    """Adam's rate for lambda."""

    # Collecting, evaluation, logs, checkpoints
    updates_per_step: float = 0.2
    """Adaptation steps per agent step: the paper's 100 per 500, spread evenly."""
    envs: int | None = None
    """Environments of the new look that act at once; as many as the source's without it."""
    prefill: int | None = None
    """Steps of random actions where no paired trajectories begin the replay; as many as the source's without it."""
    replay_size: int = 50_000
    """Rows of the new look that are kept, at most as many as the source's replay holds."""
    eval_every: int = 10_000
    """Steps between evaluations; they run beside adapting."""
    log_every: int = 1_000
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: int = 25_000
    """Steps between checkpoints."""
    wandb: str | None = None
    """Log to this project of Weights & Biases, too; needs the extra wandb."""

    @property
    def variant(self) -> str:
        """The name of these settings in the paper's comparison."""
        mine = Variant(self.method, self.calibrated, self.dynamics_kl)
        named = {row: name for name, row in VARIANTS.items()}
        return named.get(mine, f"{self.method}{'-calibrated' * mine.calibrated}{'-dynamics' * mine.dynamics_kl}")

    @property
    def calibrated(self) -> bool:
        return self.calibration > 0 or self.pairs is not None

    @property
    def run_dir(self) -> Path:
        return Path(self.run or f"{self.source.rstrip('/')}-{self.task.split('/')[0]}-{self.variant}")

    def save(self, run: Path) -> None:
        settings = dataclasses.asdict(self) | {"resume": False}
        write_whole(run / "adapt.json", json.dumps(settings, indent=2) + "\n")

    @staticmethod
    def load_run(run: Path) -> "AdaptConfig":
        path = run / "adapt.json"
        if not path.exists():
            raise UserError(f"{run} is not an adapted run: it holds no adapt.json")
        try:
            return AdaptConfig(**read_json(path))
        except TypeError as e:
            raise UserError(f"{path} does not hold this version's settings: {e}") from None


class Variant(NamedTuple):
    method: str
    calibrated: bool
    dynamics_kl: bool


VARIANTS = {
    "calibrated-support": Variant("support", True, False),
    "calibrated-distribution": Variant("distribution", True, False),
    "uncalibrated-support": Variant("support", False, False),
    "uncalibrated-distribution": Variant("distribution", False, False),
    "ila": Variant("distribution", False, True),
    "calibration": Variant("none", True, False),
}

# The released code takes calibration's mean over the encoding's 1024 elements, where the paper has a squared distance.
PRESETS = {
    "paper": {},
    "official": dict(depth=4, f_lr=3e-4, calibration_weight=1 / 1024),
    "debug": dict(steps=200, calibration=1, held_out=1, eval_every=200, log_every=50, checkpoint_every=200),
}


def preset_adapt(source: str, task: str, preset: str = "paper", **overrides) -> AdaptConfig:
    """The settings of a preset, with overrides; `VARIANTS["ila"]` as flags is `**flags("ila")`."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'; choose one of {', '.join(PRESETS)}")
    return AdaptConfig(source, task, **dict(preset=preset) | PRESETS[preset] | overrides)


def flags(variant: str) -> dict:
    """A row of the table as settings."""
    row = VARIANTS[variant]
    return {"method": row.method, "dynamics_kl": row.dynamics_kl} | ({} if row.calibrated else {"calibration": 0})
