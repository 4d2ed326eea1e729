"""Time of one update at sizes that every commit since the first can run, to compare two trees on one machine.

    git worktree add /tmp/before 482860e
    for tree in /tmp/before . /tmp/before .; do PYTHONPATH=$tree python scripts/update_time.py $tree; done

With `small` behind the tree's name: at the small preset's sizes, which commits since 463d3c9 have, imagining from every
row. Wall time where nothing else runs; on a busy machine the CPU time of all threads, halved, is what two idle cores
would take at best.
"""

import dataclasses
import sys
import time

import jax
import numpy as np

from undistracted.config import Config
from undistracted.data import Batch
from undistracted.learner import Learner

try:
    from undistracted.presets import complete, preset_config
except ImportError:  # before the presets had a file of their own
    from undistracted.config import complete, preset_config

ACTIONS, REPEATS = 6, 60
SIZES = dict(batch=16, length=20, channels=(8, 16, 32, 64), belief=128, state=16, hidden=128, horizon=12)
LATER = dict(shrink=1, start_every=1)  # settings that came later, at the values that older trees have

known = {field.name for field in dataclasses.fields(Config)}
sizes = dict(start_every=1) if "small" in sys.argv else SIZES | LATER
sizes = {name: value for name, value in sizes.items() if name in known}
config = complete(preset_config("distracted/walker-walk", "small", **sizes, replay_size=2000, envs=2))
learner, rng, shape = Learner(config, ACTIONS), np.random.default_rng(0), (1, 2)
for t in range(60):
    obs = rng.integers(0, 256, (*shape, 64, 64, 3), np.uint8)
    action = rng.uniform(-1, 1, (*shape, ACTIONS)).astype(np.float32)
    learner.add(Batch(obs, action, rng.uniform(0, 2, shape).astype(np.float32), np.full(shape, t == 0)))

walls, cpus = [], []
for _ in range(REPEATS + 1):
    wall, cpu = time.perf_counter(), time.process_time()
    learner.update(1)
    jax.block_until_ready(learner.state)
    walls.append(1e3 * (time.perf_counter() - wall))
    cpus.append(1e3 * (time.process_time() - cpu) / 2)
for name, times in (("wall", walls[1:]), ("CPU / 2", cpus[1:])):  # the first compiles
    print(f"{' '.join(sys.argv[1:])}: {name} min {min(times):.1f} median {np.median(times):.1f} ms")
