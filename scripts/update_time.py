"""Time of one update in several trees of this repository, in turns on one machine, so that all meet the same noise:

    git worktree add /tmp/before 482860e
    python scripts/update_time.py /tmp/before .

At sizes that every commit since the first can run; with `small` before the trees at the small preset's, which commits
since 463d3c9 have, imagining from every row. Wall time counts where nothing else runs; on a busy machine the CPU
time of all threads, halved, is what two idle cores would take at best.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from statistics import median

ACTIONS, ROUNDS, REPEATS = 6, 10, 10
SIZES = dict(batch=16, length=20, channels=(8, 16, 32, 64), shrink=1, belief=128, state=16, hidden=128, horizon=12)
LATER = dict(start_every=1, shift=0, foresight=0)  # settings that came later, at the values that older trees have


def make_learner(small: bool):
    """The tree's own learner, which is the one on the path, with a few rows to learn from."""
    import numpy as np

    from undistracted.config import Config
    from undistracted.data import Batch
    from undistracted.learner import Learner

    try:
        from undistracted.presets import complete, preset_config
    except ImportError:  # before the presets had a file of their own
        from undistracted.config import complete, preset_config

    known = {field.name for field in dataclasses.fields(Config)}
    sizes = {name: x for name, x in (LATER if small else SIZES | LATER).items() if name in known}
    config = complete(preset_config("distracted/walker-walk", "small", **sizes, replay_size=2000, envs=2))
    learner, rng, shape = Learner(config, ACTIONS), np.random.default_rng(0), (1, 2)
    for t in range(60):
        obs = rng.integers(0, 256, (*shape, 64, 64, 3), np.uint8)
        action = rng.uniform(-1, 1, (*shape, ACTIONS)).astype(np.float32)
        learner.add(Batch(obs, action, rng.uniform(0, 2, shape).astype(np.float32), np.full(shape, t == 0)))
    return learner


def serve(small: bool) -> None:
    """For each line that comes in, one more round of updates, and their times in ms."""
    import jax

    learner = make_learner(small)
    for _ in sys.stdin:
        times = []
        for _ in range(REPEATS):
            wall, cpu = time.perf_counter(), time.process_time()
            learner.update(1)
            jax.block_until_ready(learner.state)
            times.append((1e3 * (time.perf_counter() - wall), 500 * (time.process_time() - cpu)))
        print(json.dumps(times[1:]), flush=True)  # the first of the first round compiles


def main(trees: list[str], small: bool) -> None:
    serving = [sys.executable, __file__, "--serve", *["small"] * small]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    servers = [subprocess.Popen(serving, env=os.environ | {"PYTHONPATH": tree}, **pipes) for tree in trees]
    times = [[] for _ in trees]
    for _ in range(ROUNDS):
        for server, seen in zip(servers, times, strict=True):
            print("go", file=server.stdin, flush=True)
            seen += json.loads(server.stdout.readline())
    for tree, server, seen in zip(trees, servers, times, strict=True):
        server.stdin.close()
        for kind, name in enumerate(("wall", "CPU / 2")):
            first, own = ([time[kind] for time in column] for column in (times[0], seen))
            line = f"{tree}: {name} min {min(own):.1f} median {median(own):.1f} ms; the first tree's over it "
            print(line + f"{min(first) / min(own):.2f}, {median(first) / median(own):.2f}")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument not in ("small", "--serve")]
    if "--serve" in sys.argv:
        serve("small" in sys.argv)
    else:
        main(arguments, "small" in sys.argv)
