"""Pixel environments by name.

Every task follows the Gymnasium API: observations are uint8 pictures of 64x64x3, actions float32 in [-1, 1]. One agent
step is `action_repeat` raw frames whose rewards are summed, and one picture. `reset(seed=s)` decides everything that
follows, physics and video alike.
"""

import os
from pathlib import Path

import gymnasium

from undistracted.envs.tasks import SUITE_FAMILIES, check_task, domain, split_task, task_names
from undistracted.envs.video import PROTOCOLS, SPLITS, Clips, clips_of
from undistracted.errors import UserError

__all__ = ["Clips", "check_task", "clips_of", "domain", "make_env", "task_names"]

# dm_control reads these when it is imported: off-screen GL, and software GL without threads, which is fastest here
# because training runs one environment per process.
os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("LP_NUM_THREADS", "0")
# Where there are cores enough, software GL is faster than a GPU's, whose contexts wait for each other and for the
# learner (`docs/performance.md`).
MESA = Path("/usr/share/glvnd/egl_vendor.d/50_mesa.json")
if MESA.exists() and os.cpu_count() >= 8:
    os.environ.setdefault("__EGL_VENDOR_LIBRARY_FILENAMES", str(MESA))

RENDERS = ("fast", "faithful")


def make_env(
    task: str,
    *,
    split: str = "train",
    videos: str | os.PathLike | None = None,
    seed: int = 0,
    protocol: str = "random",
    render: str = "fast",
    color: bool = False,
    action_repeat: int | None = None,
) -> gymnasium.Env:
    """Build a task's environment.

    split: whose backgrounds: `train`, `test` (disjoint from `train`) or `clean` (none).
    videos: folder of video files; None for the built-in procedural ones.
    seed: decides the first reset, unless that one is given a seed itself.
    protocol: `random` draws a clip and a position for every episode; `official` follows the authors' code: one loop of
        1000 frames that is never rewound, seen in every split but `clean`, and a softened hopper reward.
    render: `fast` leaves out shadows, reflections and antialiasing; `faithful` keeps the simulator's own look.
    color: show the videos in colour instead of gray.
    action_repeat: raw frames per agent step; by default 2, and 1 for `gym/...`.
    """
    check_task(task)
    for name, value, choices in (
        ("split", split, SPLITS),
        ("protocol", protocol, PROTOCOLS),
        ("render", render, RENDERS),
    ):
        if value not in choices:
            raise UserError(f"unknown {name} '{value}': choose from {', '.join(choices)}")
    if action_repeat is not None and action_repeat < 1:
        raise UserError(f"action_repeat must be at least 1, not {action_repeat}")
    family, domain_name, name = split_task(task)
    if family in SUITE_FAMILIES:
        from undistracted.envs.distracted import Distracted, Scoreboard
        from undistracted.envs.dmc import DMC

        env = DMC(
            domain_name,
            name,
            seed=seed,
            action_repeat=action_repeat or 2,
            fast=render == "fast",
            recolor=family != "dmc" or render == "fast",
            soft_hopper=protocol == "official",
        )
        if family != "dmc" and split != "clean":
            clips = clips_of(videos, split, color=color, protocol=protocol, seed=seed)
            env = Distracted(env, clips, rewind=protocol == "random")
        if family == "scoreboard":
            env = Scoreboard(env)
    else:
        from undistracted.envs.gym import GymPixels

        env = GymPixels(name, action_repeat=action_repeat or 1)
    return SeedFirstReset(env, seed)


class SeedFirstReset(gymnasium.Wrapper):
    """Gives the first reset a seed when the caller does not."""

    def __init__(self, env: gymnasium.Env, seed: int):
        super().__init__(env)
        self.seed = seed

    def reset(self, *, seed=None, options=None):
        first, self.seed = self.seed, None
        return self.env.reset(seed=first if seed is None else seed, options=options)
