"""Every setting of a training run, with the paper's values as defaults.

A run's `config.json` is this dataclass, complete: rerunning from it gives the same run.
"""

import dataclasses
import json
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from undistracted.agents import settings
from undistracted.errors import UserError
from undistracted.files import read_json, write_whole


@dataclass(frozen=True)
class Config:
    """Train an agent on a task. Steps are agent steps: frames divided by the action repeat."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """What to learn, e.g. distracted/walker-walk; `undistracted tasks` lists them."""
    agent: str = "repo"
    """The method; `undistracted agents` lists them."""
    preset: Literal["auto", "paper", "tuned", "original", "small", "debug"] = "auto"
    """Sizes and schedule: the paper's comparison, tuned (RePo's, faster in front of films), the method's original ones,
    small (minutes on 2 CPU cores), debug (seconds); auto = paper on a GPU."""
    steps: int = 500_000
    """Agent steps to train for, after the prefill."""
    seed: int = 0
    """Seed of parameters, environments, videos and sampling."""
    seeds: int = 1
    """Train this many seeds at once (seed, seed + 1, ...), each with environments and replay of its own. They go in
    lockstep, by the mean of their steps, which differ where episodes end early."""
    videos: str | None = None
    """Folder of background videos (with train/ and test/, or split 80/20); built-in moving pictures without it."""
    run: str | None = None
    """Run directory; runs/TASK-AGENT-sSEED without it."""
    resume: bool = False
    """Go on from the newest checkpoint of the run directory."""

    # Environment
    protocol: Literal["random", "official"] = "random"
    """Backgrounds: a new clip and position each episode, or the released code's one loop of 1000 frames."""
    render: Literal["fast", "faithful"] = "fast"
    """Fast drops shadows, reflections and anti-aliasing; faithful is dm_control's own look."""
    color: bool = False
    """Colour video instead of gray."""
    action_repeat: int | None = None
    """Frames per agent step; by task without it (2 for DeepMind Control, 1 for gym/...)."""
    envs: int = 20
    """Environments that collect at once, per seed."""
    processes: bool = True
    """Run each environment in a process of its own."""

    # Schedule
    prefill: int = 5_000
    """Steps of random actions before learning; they do not count towards the steps."""
    replay_size: int = 500_000
    """Rows kept for learning, per seed."""
    updates_per_step: float = 0.2
    """Gradient steps per agent step: the paper's 100 per 500, spread evenly."""
    warm_up_updates: int = 0
    """Gradient steps at once when learning begins."""
    sync: bool = False
    """Learn before the next action instead of while the environments take it; on a GPU without operations that add up
    in another order each time."""
    batch: int = 50
    """Sequences per update."""
    length: int = 50
    """Rows per sequence."""

    # Model
    channels: tuple[int, ...] = (32, 64, 128, 256)
    """Channels of the convolutions."""
    shift: int = 0
    """Learn from pictures moved at random by up to this many pixels each way; of the world-model agents."""
    shrink: int = 1
    """Average the picture over squares of this side before the convolutions."""
    belief: int = 200
    """Size of the deterministic belief, D."""
    state: int = 30
    """Size of the stochastic state, Z."""
    hidden: int = 200
    """Width of the RSSM's layers and of every MLP."""
    width: int | None = None
    """Width of reward, actor and critic; that of --hidden without it."""
    reward_depth: int = 3
    """Hidden layers of the reward head."""
    initial: Literal["uniform", "glorot"] = "uniform"
    """Initial weights of the world-model agents: uniform in 1 / sqrt(inputs), or Glorot's with biases of zero."""
    model_lr: float = 3e-4
    """Adam's rate for encoder, RSSM and reward."""
    clip: float = 100.0
    """Clip of the global gradient norm of model, actor and critic, each."""
    adam_eps: float = 1e-8
    """Adam's epsilon, of all optimisers."""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of matrix products; parameters and losses are float32. auto = bfloat16 on a GPU."""
    native_conv: bool | None = None
    """Use the library's convolution instead of a matrix product; without it, on a GPU."""
    merge_gates: bool | None = None
    """Imagine with the GRU's two products as one; without it, on a GPU."""
    kernels: bool = True
    """Filter and imagine by CUDA kernels of our own, in bfloat16, where they run: on Hopper GPUs (tried on an H200)."""
    unroll: int = 25
    """Steps of the recurrent loops that are compiled into one."""

    # Bottleneck
    beta0: float | None = None
    """Initial dual variable; by domain from the paper's table without it."""
    epsilon: float | None = None
    """Budget of the bottleneck, nats per step; by domain without it."""
    r: float | None = None
    """KL balance: prior steps per posterior step, alpha = r / (r + 1); by domain without it."""
    beta_lr: float = 1e-4
    """Adam's rate for log beta."""
    foresight: int = 0
    """Learn from rewards told this many steps ahead by the prior alone, too; of RePo."""
    official_boundary: bool = False
    """Episode starts as in the released code: belief and last action flow on from the old episode."""

    # Reconstruction
    free_nats: float = 3.0
    """KL below which the model is not pushed, nats per step."""
    free_nats_of_mean: bool = False
    """Compare the mean KL of the batch with the free nats, instead of each row's."""
    image_std: float = 1.0
    """Deviation of the decoder's Gaussian over pixels in [-1, 1]; 2 = unit deviation over [-0.5, 0.5]."""

    # Behaviour
    horizon: int = 15
    """Imagined latents."""
    start_every: int = 1
    """Imagine from every n-th row of a sequence only."""
    official_horizon: bool = False
    """The released code's count: one imagined latent less than the horizon says."""
    gamma: float = 0.99
    """Discount per agent step."""
    return_lambda: float = 0.95
    """Lambda of the lambda-returns."""
    entropy_bonus: float = 3e-4
    """Weight of the policy's entropy."""
    discount_weights: bool = False
    """Weigh imagined returns by 1, gamma, gamma^2, ..., in the losses of actor and critic."""
    exploration: float = 0.0
    """Deviation of the noise that is added to actions while collecting."""
    actor_std: float | None = None
    """The policy's deviation where its network puts out zero, before the least one is added; log 2 without it."""
    actor_min_std: float = 0.1
    """Least deviation of the policy."""
    actor_lr: float = 8e-5
    """Adam's rate for the actor."""
    critic_lr: float = 8e-5
    """Adam's rate for the critic."""

    # Evaluation, logs, checkpoints
    eval_every: int = 25_000
    """Steps between evaluations; they run beside training."""
    eval_episodes: int = 16
    """Episodes per split and seed in each evaluation."""
    eval_envs: int = 16
    """Environments per split and seed that evaluate at once."""
    log_every: int = 2_500
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: int = 50_000
    """Steps between checkpoints."""
    save_replay: bool = True
    """Keep the replay with the checkpoints: needed to resume and to adapt (6 GB for a paper run)."""
    wandb: str | None = None
    """Log to this project of Weights & Biases, too; needs the extra wandb."""

    # Of single methods
    tia: settings.TIA = settings.TIA()
    denoised: settings.Denoised = settings.Denoised()
    sac: settings.SAC = settings.SAC()
    deepmdp: settings.DeepMDP = settings.DeepMDP()
    dbc: settings.DBC = settings.DBC()
    tdmpc: settings.TDMPC = settings.TDMPC()

    @property
    def run_dir(self) -> Path:
        return Path(self.run or f"runs/{self.task.split('/')[-1]}-{self.agent}-s{self.seed}")

    def env(self, split: str, seed: int = 0) -> dict:
        """Keyword arguments of `make_env` for the seed-th seed of the run."""
        names = "task", "videos", "protocol", "render", "color", "action_repeat"
        return {"split": split, "seed": self.seed + seed} | {name: getattr(self, name) for name in names}

    def save(self, path: Path) -> None:
        saved = dataclasses.asdict(self) | {"resume": False}
        write_whole(path, json.dumps(saved, indent=2) + "\n")

    @staticmethod
    def load_run(run: Path) -> "Config":
        path = run / "config.json"
        if not path.exists():
            raise UserError(f"{run} is not a run directory: it holds no config.json")
        saved = read_json(path)
        try:
            own = {
                f.name: type(f.default)(**saved.get(f.name, {}))
                for f in dataclasses.fields(Config)
                if is_dataclass(f.default)
            }
            return Config(**saved | own | {"channels": tuple(saved["channels"])})
        except (KeyError, TypeError, AttributeError) as e:
            raise UserError(f"{path} does not hold this version's settings: {e}") from None
