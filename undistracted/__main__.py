"""The command line: each verb parses its settings and calls one function that a notebook could call too."""

import contextlib
import dataclasses
import io
import itertools
import json
import sys
from operator import attrgetter
from pathlib import Path

from undistracted import __version__
from undistracted.errors import UserError, did_you_mean, no_number, told

# What a resumed run may be told anew; what it is of has a check of its own.
MAY_CHANGE = "steps", "run", "resume", "preset", "task", "agent", "seed"

VERBS = {
    "train": "train an agent on a task",
    "evaluate": "returns of a trained run on seen, unseen or no backgrounds, and a film",
    "adapt": "adapt a run's encoder to a new look of its task, without rewards",
    "plot": "learning curves of runs, mean and interval over seeds",
    "toy": "the paper's 2-D example of the support constraint",
    "bench": "update, policy, environment and end-to-end rates of this machine",
    "tasks": "what can be learned",
    "agents": "what can learn",
}


def main(argv: list[str] | None = None) -> int:
    """Run a verb; 0 on success, 2 with one `error:` line on a user's mistake."""
    verb, *args = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if verb in ("-h", "--help", "help"):
        print("usage: undistracted VERB ... | --version      (undistracted VERB --help says more)\n")
        print("\n".join(f"  {name:10s} {text}" for name, text in VERBS.items()))
        return 0
    if verb in ("-V", "--version"):
        print(f"undistracted {__version__}")
        return 0
    return told(globals().get(f"run_{verb}", lambda _: unknown(verb)), args)


def unknown(verb: str) -> None:
    raise UserError(f"unknown verb '{verb}'{did_you_mean(verb, VERBS)} (`undistracted --help` lists them all)")


def run_train(args: list[str]) -> None:
    import tyro

    from undistracted.config import Config
    from undistracted.presets import preset_config

    # Agent and preset decide the other defaults, which --help then shows; and, for some, the task does.
    agent, preset = value_of(args, "--agent") or "repo", value_of(args, "--preset") or "auto"
    if kept := saved(Config, args):
        config = parse(Config, args, "train", kept)
    else:
        config = parse(Config, args, "train", preset_config(tyro.MISSING, preset, agent))
        config = parse(Config, args, "train", preset_config(config.task, preset, agent))
    from undistracted.checkpoint import newest
    from undistracted.envs import check_task
    from undistracted.training import train

    if config.resume:
        check_task(config.task)
        newest(config.run_dir)
        config = resumed(args, config, Config.load_run(config.run_dir))
    keep_compiled()
    train(config)


def run_evaluate(args: list[str]) -> None:
    from undistracted.evaluation import EvaluateConfig, evaluate
    from undistracted.logger import print_summary

    options = parse(EvaluateConfig, args, "evaluate")
    keep_compiled()
    print_summary(evaluate(options))


def run_adapt(args: list[str]) -> None:
    import tyro

    from undistracted.adapt.config import AdaptConfig, preset_adapt

    fresh = preset_adapt(tyro.MISSING, tyro.MISSING, value_of(args, "--preset") or "paper")
    options = parse(AdaptConfig, args, "adapt", saved(AdaptConfig, args) or fresh)
    from undistracted.adapt.adapt import adapt

    if options.resume:
        options = resumed(args, options, AdaptConfig.load_run(options.run_dir))
    keep_compiled()
    adapt(options)


def run_plot(args: list[str]) -> None:
    from undistracted.plot import PlotConfig, plot

    plot(parse(PlotConfig, args, "plot"))


def run_toy(args: list[str]) -> None:
    from undistracted.adapt.toy import ToyConfig, toy

    toy(parse(ToyConfig, args, "toy"))


def run_bench(args: list[str]) -> None:
    from undistracted.bench import BenchConfig, bench, print_bench
    from undistracted.interrupt import asked_to_stop

    options = parse(BenchConfig, args, "bench")
    result = {}
    try:
        with asked_to_stop() as request:
            bench(options, result, request.heed)
    finally:  # after Ctrl-C, too: minutes went into what is known by then
        if result:
            print(json.dumps(result)) if options.json else print_bench(result)
            sys.stdout.flush()  # before Python waits for compilers that may still be at work


def run_tasks(args: list[str]) -> None:
    from undistracted.envs import task_names

    no_arguments("tasks", args)
    print("\n".join(task_names()))


def run_agents(args: list[str]) -> None:
    from undistracted.agents import AGENTS

    no_arguments("agents", args)
    print("\n".join(f"{name:14s} {entry.about}" for name, entry in AGENTS.items()))


def keep_compiled() -> None:
    """On a GPU, where compiling takes a minute, keep what was compiled for later runs, beside the decoded videos."""
    import jax

    from undistracted.files import cache_folder
    from undistracted.presets import on_gpu

    if on_gpu() and jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))


def parse(settings, args: list[str], verb: str, default=None):
    """Read a dataclass off the command line; a mistake becomes one line instead of a boxed page."""
    import tyro

    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(settings, args=args, prog=f"undistracted {verb}", default=default)
    except SystemExit as e:
        if not e.code:
            raise
        lines = [line.strip("│╭╮╰╯|+ ") for line in errors.getvalue().splitlines()[1:]]
        parts = itertools.groupby(lines, key=lambda line: bool(line) and set(line) <= {"─", "-"})  # by the box's rules
        message = next(" ".join(part) for is_rule, part in parts if not is_rule)
        raise UserError(f"{no_number(message)} (see undistracted {verb} --help)") from None


def value_of(args: list[str], flag: str) -> str | None:
    """The value of `--flag value` or `--flag=value`, before the command line is read in full."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"{flag}="):
            return arg.split("=", 1)[1]
    return None


def saved(settings, args: list[str]):
    """Those of the run that is named to be resumed, which need not be given once more."""
    run = value_of(args, "--run")
    return settings.load_run(Path(run)) if "--resume" in args and run else None


def resumed(args: list[str], given, kept):
    """The given settings, to resume a run that keeps its own: without --steps, of as many as the run was meant for."""
    for flag in (arg.split("=", 1)[0] for arg in args if arg.startswith("--")):
        name = flag[2:].replace("-", "_").removeprefix("no_")
        value, own = attrgetter(name)(given), attrgetter(name)(kept)
        same = value in (own, None, "auto") or str(value).rstrip("/") == str(own).rstrip("/")  # clips/ is clips
        if not same and name not in MAY_CHANGE:
            raise UserError(f"{flag} is {own} in {given.run_dir}; a resumed run keeps its settings, all but --steps")
    return given if value_of(args, "--steps") else dataclasses.replace(given, steps=kept.steps)


def no_arguments(verb: str, args: list[str]) -> None:
    if {"-h", "--help"} & set(args):
        print(f"usage: undistracted {verb}      {VERBS[verb]}")
        raise SystemExit(0)
    if args:
        raise UserError(f"undistracted {verb} takes no arguments, got '{' '.join(args)}'")


if __name__ == "__main__":
    sys.exit(main())
