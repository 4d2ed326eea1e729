"""Presets of settings, the paper's table of hyper-parameters, and the settings that depend on task or machine."""

import dataclasses
from operator import attrgetter

from undistracted.agents import AGENTS, Entry
from undistracted.config import Config
from undistracted.envs import check_task, domain
from undistracted.errors import UserError, did_you_mean
from undistracted.parts import use_cores
from undistracted.wandb_log import check_wandb

# The paper's table of hyper-parameters by domain; domains it does not list use the row of walker and cheetah.
BOTTLENECK = {
    "walker": dict(beta0=1e-5, epsilon=3.0, r=5.0),
    "cheetah": dict(beta0=1e-5, epsilon=3.0, r=5.0),
    "hopper": dict(beta0=1e-4, epsilon=1.0, r=3.0),
    "cartpole": dict(beta0=1e-4, epsilon=3.0, r=4.0),
}

PRESETS: dict[str, dict] = {
    "paper": {},
    "tuned": {},  # what did better here than the paper's settings, for agents that have such
    "original": {},  # each method's own published settings, where they are not the paper's
    "small": dict(
        steps=48_000,
        envs=2,
        prefill=2_000,
        replay_size=60_000,
        batch=16,
        length=20,
        channels=(8, 16, 32),
        shrink=2,
        belief=96,
        state=16,
        hidden=96,
        horizon=12,
        start_every=2,
        model_lr=6e-4,
        actor_lr=3e-4,
        critic_lr=3e-4,
        beta_lr=1e-3,
        entropy_bonus=3e-3,
        unroll=1,
        eval_every=16_000,
        eval_episodes=8,
        eval_envs=2,
        log_every=500,
        checkpoint_every=16_000,
    ),
    "debug": dict(
        steps=200,
        envs=2,
        processes=False,
        prefill=100,
        replay_size=1_000,
        updates_per_step=0.05,
        batch=4,
        length=8,
        channels=(4, 4, 4, 4),
        belief=16,
        state=4,
        hidden=16,
        horizon=4,
        unroll=1,
        eval_every=100,
        eval_episodes=1,
        eval_envs=1,
        log_every=50,
        checkpoint_every=100,
    ),
}

NOT_NEGATIVE = "seed steps prefill shift foresight updates_per_step tia.inner_steps denoised.y_belief denoised.y_state"
NOT_NEGATIVE += " tdmpc.samples tdmpc.proposals tdmpc.schedule tdmpc.shift r reward_depth"
NOT_NEGATIVE += " model_lr beta_lr actor_lr critic_lr"
POSITIVE = "seeds envs batch length horizon start_every eval_every eval_episodes eval_envs log_every checkpoint_every"
POSITIVE += " belief state hidden shrink sac.frames sac.latent sac.actor_every sac.target_every sac.model_hidden"
POSITIVE += " tdmpc.frames tdmpc.latent tdmpc.elites tdmpc.rounds tdmpc.target_every tdmpc.plan_every"
BOUNDS = [
    (lambda x: x >= 0, NOT_NEGATIVE.split(), "not be negative"),
    (lambda x: x >= 1, POSITIVE.split(), "be at least 1"),
    (lambda x: x > 0, ["image_std", "actor_std", "beta0", "sac.alpha0"], "be above 0"),
    (lambda x: 0 <= x <= 1, ["gamma"], "be between 0 and 1"),
]


def preset_config(task: str, preset: str = "auto", agent: str = "repo", **overrides) -> Config:
    """The settings of a preset, with overrides: `preset_config("distracted/walker-walk", "small", steps=1000)`."""
    name, entry = resolve_preset(preset), agent_entry(agent)
    if name == "tuned" and name not in entry.presets:
        some = " and ".join(other for other, x in AGENTS.items() if name in x.presets)
        raise UserError(f"--preset tuned has settings for {some} only; use --preset paper for {agent}")
    by_domain = entry.domains.get(domain(task), {}) if name == "original" and isinstance(task, str) else {}
    settings = PRESETS[name] | entry.presets.get(name, {}) | by_domain | overrides
    return dataclasses.replace(Config(task, agent=agent, preset=preset), **settings)


def agent_entry(agent: str) -> Entry:
    if agent not in AGENTS:
        raise UserError(f"unknown agent '{agent}'{did_you_mean(agent, AGENTS)} (`undistracted agents` lists them all)")
    return AGENTS[agent]


def resolve_preset(preset: str) -> str:
    if preset not in ("auto", *PRESETS):
        raise UserError(f"unknown preset '{preset}'; choose one of auto, {', '.join(PRESETS)}")
    return preset if preset != "auto" else "paper" if on_gpu() else "small"


def on_gpu() -> bool:
    """The first that is asked of JAX, which must know by then how many devices a CPU is."""
    import jax

    use_cores()
    return jax.default_backend() == "gpu"


def complete(config: Config) -> Config:
    """Check the settings and fill in those that depend on task or machine."""
    check_task(config.task)
    agent_entry(config.agent)
    check_wandb(config)
    for fits, names, text in BOUNDS:
        for name in names:
            value = attrgetter(name)(config)
            if value is not None and not fits(value):
                raise UserError(f"--{name.replace('_', '-')} is {value}; it must {text}")
    if config.prefill // config.envs < config.length:
        need = config.length * config.envs
        raise UserError(
            f"--prefill {config.prefill} gives each of {config.envs} environments fewer rows than one "
            f"sequence of {config.length}; use --prefill {need} or more"
        )
    if 2 * config.foresight > config.length:
        most = config.length // 2
        raise UserError(
            f"--foresight {config.foresight} leaves less than two pieces of a sequence of {config.length} rows; "
            f"use --foresight {most} or less"
        )
    if config.replay_size // config.envs < config.length:
        need = config.length * config.envs
        raise UserError(
            f"--replay-size {config.replay_size} keeps fewer rows of each of {config.envs} environments than one "
            f"sequence of {config.length}; use --replay-size {need} or more"
        )
    row = BOTTLENECK.get(domain(config.task), BOTTLENECK["walker"])
    chosen = {name: value for name, value in row.items() if getattr(config, name) is None}
    precision = ("bfloat16" if on_gpu() else "float32") if config.precision == "auto" else config.precision
    chosen |= {name: on_gpu() for name in ("native_conv", "merge_gates") if getattr(config, name) is None}
    return dataclasses.replace(config, preset=resolve_preset(config.preset), precision=precision, **chosen)
