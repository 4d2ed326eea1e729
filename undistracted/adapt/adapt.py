"""Test-time adaptation (the paper's Algorithm 2): a new look, no rewards, and only the encoder moves.

The loop is that of training: act in the new look through the encoder as it is by now, and meanwhile take the steps
that are owed. What differs is the agent (`agent.py`), whose update plays the game of `align.py`, and what it begins
with: encodings of all that the source has seen, and pairs of both looks.
"""

import contextlib
import dataclasses
from functools import partial
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from safetensors import SafetensorError
from safetensors.numpy import save_file

from undistracted import checkpoint
from undistracted import replay as ring
from undistracted.adapt.agent import AdaptingAgent, Data
from undistracted.adapt.config import AdaptConfig
from undistracted.adapt.pairs import columns, gather_pairs
from undistracted.adapt.source import FILE, FrozenEncoder, relative_distance, source_encodings
from undistracted.agents import make_agent
from undistracted.agents.latent import LatentAgent
from undistracted.config import Config
from undistracted.errors import UserError
from undistracted.evaluation import summarise
from undistracted.files import read_arrays
from undistracted.interrupt import Request, drive
from undistracted.learner import Learner
from undistracted.presets import complete
from undistracted.rundir import check_steps, check_unused
from undistracted.training import Trainer

COLLAPSED = 0.01  # of the source's spread
# Settings of an adaptation that are its run's too; the source's where they are None.
SHARED = ("task", "videos", "protocol", "render", "color", "updates_per_step", "envs", "prefill",
          "eval_every", "log_every", "checkpoint_every")  # fmt: skip


def adapt(options: AdaptConfig) -> dict:
    """Adapt as configured; the summary of the final evaluation, e.g. `adapt(options)["test"]["return"]`."""
    return drive(partial(Adaptation, *prepare(options)))


def prepare(options: AdaptConfig) -> tuple[AdaptConfig, Config]:
    """The settings of the adaptation, and those of its run; on --resume the run's own, but for the number of steps."""
    run = options.run_dir
    changes = {"steps": options.steps, "run": str(run), "resume": options.resume}
    if options.resume:
        saved = AdaptConfig.load_run(run)
        checkpoint.newest(run)
        check_steps(run, options.steps)
        if (Path(saved.source).resolve(), saved.task) != (Path(options.source).resolve(), options.task):
            raise UserError(f"{run} holds an adaptation of {saved.source} to {saved.task}; name the same to resume it")
        return dataclasses.replace(saved, **changes), dataclasses.replace(Config.load_run(run), **changes)
    source = Config.load_run(Path(options.source))
    if not isinstance(make_agent(source, action_size=1), LatentAgent):
        raise UserError(f"{options.source} is a run of {source.agent}, which has no encoder apart from its dynamics")
    checkpoint.newest(Path(options.source))
    check_unused(run)
    check(options)
    for name in SHARED:
        changes |= {name: getattr(options, name)} if getattr(options, name) is not None else {}
    changes |= {"replay_size": min(options.replay_size, source.replay_size), "save_replay": True, "warm_up_updates": 0}
    changes |= {"shift": 0}  # encodings of both looks are compared as the pictures are
    changes |= {"wandb": options.wandb}  # that of the source was asked for the source alone
    return dataclasses.replace(options, run=str(run)), complete(dataclasses.replace(source, **changes))


def check(options: AdaptConfig) -> None:
    if options.method == "none" and not options.calibrated and not options.dynamics_kl:
        raise UserError("nothing to adapt by: choose a --method, or --calibration, or --dynamics-kl")
    for name in ("steps", "calibration", "held_out", "collect_source"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must not be negative")
    for name in ("hidden", "depth", "code"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}; it must be at least 1")


def at_it(text: str):
    """Something to look at on a terminal, while it lasts."""
    console = Console(stderr=True)
    return console.status(text) if console.is_terminal else contextlib.nullcontext()


class Adaptation(Trainer):
    verb = "adapt"

    def __init__(self, options: AdaptConfig, config: Config, request: Request | None = None):
        self.options, self.rows, self.before, self.collapsed = options, None, {}, False
        super().__init__(config, request)
        options.save(self.path)

    def make_learner(self, action_size: int) -> Learner:
        c, o = self.config, self.options
        if not c.resume:
            source = Path(o.source)
            frozen, _ = checkpoint.load_learner(source, Config.load_run(source))
            if frozen.agent.action_size != action_size:
                raise UserError(
                    f"'{c.task}' takes {action_size} actions, the agent of {source} has {frozen.agent.action_size}; "
                    "adapt it to a look of its own task"
                )
            self._gather(source, frozen)
        arrays = read_arrays(self.path / FILE)
        data = Data(*(arrays.get(name) for name in Data._fields))
        agent = AdaptingAgent(make_agent(c, action_size), o)
        learner = Learner(c, action_size, agent=agent, data=(data,))
        if not c.resume:
            learner.state = learner.state._replace(**frozen.state._asdict())
        seeds, held_out = learner.seeds, ("held_out_source", "held_out_target")
        self.held_out = seeds.put([arrays[name] for name in held_out if name in arrays])

        def distance(encoder, x_s, frames):
            return relative_distance(x_s, encoder(frames))

        self._distance = jax.jit(seeds.spread(seeds.map(distance), (0, 0, 0)))
        return learner

    def _gather(self, source: Path, frozen: Learner) -> None:
        """Write what adapting draws from: it is made once, and a resumed adaptation finds it again."""
        config, heed = Config.load_run(source), self.request.heed
        encode = FrozenEncoder(frozen, heed)
        with at_it("gathering pairs of both looks"):
            gathered = gather_pairs(self.options, config, self.config, frozen, heed)
        with at_it("encoding what the source has seen"):
            arrays = {"source": source_encodings(source, config, frozen, encode, self.options.collect_source)}
        for name, pairs in (("paired", gathered.calibration), ("held_out", gathered.held_out)):
            if pairs is not None:
                arrays |= {f"{name}_source": encode(pairs.source), f"{name}_target": pairs.target}
        self.rows = gathered.rows
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            save_file({name: np.ascontiguousarray(x) for name, x in arrays.items()}, self.path / FILE)
        except (OSError, SafetensorError) as e:
            raise UserError(f"cannot write {self.path / FILE}: {e}; make room there, or name another --run") from e

    def begin(self) -> None:
        """The replay begins with the calibration's side of the new look, or with random episodes."""
        self._log()  # how far apart the encodings are before anything has moved
        c = self.config
        if self.rows is None or self.rows.first.shape[1] // c.envs < c.length:
            return super().begin()
        extend = jax.jit(jax.vmap(ring.extend), donate_argnums=0)
        self.learner.replay = extend(self.learner.replay, columns(self.rows, c.envs))
        self.rows = None
        return None

    def metrics(self) -> list[dict]:
        rows = super().metrics()
        if self.held_out:
            distances = np.asarray(self._distance(self.learner.state.policy.model.encoder, *self.held_out))
            rows = [row | {"held_out_distance": float(d)} for row, d in zip(rows, distances, strict=True)]
        for row in rows:
            if not self.collapsed and row.get("target_spread", 1) < COLLAPSED * row.get("source_spread", 0):
                self.collapsed = True
                self.terminal.say(
                    f"warning: at step {self.step:,} the encodings of {self.config.task} have collapsed into a point "
                    "(target_spread); --calibration holds them apart"
                )
        return rows

    def watched(self, values: dict) -> dict[str, str]:
        shown = {"tau": "tau", "lambda": "lambda", "f_kl": "f's KL", "held_out_distance": "distance"}
        return {text: f"{values[name]:.2g}" for name, text in shown.items() if name in values}

    def _report(self, results) -> None:
        if results and results[0].step == 0:
            self.before = {split: f"{s['return']:.1f}" for split, s in summarise(results).items()}
        super()._report(results)

    def _finish(self) -> dict:
        summary = super()._finish()
        if summary and self.before:
            self.terminal.say("before adapting: " + "  ".join(f"{split} {text}" for split, text in self.before.items()))
        return summary

    def _title(self) -> str:
        o, c = self.options, self.config
        videos = f"videos {c.videos}   " if c.videos else ""
        return f"{o.variant}: {o.source} to {c.task}   {videos}{jax.devices()[0].device_kind}   {c.run}"
