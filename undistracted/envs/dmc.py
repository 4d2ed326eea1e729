"""The DeepMind Control Suite as a Gymnasium environment of pictures."""

import contextlib
import xml.etree.ElementTree as ET

import gymnasium
import mujoco
import numpy as np
from absl import logging
from dm_control import suite
from dm_control.mujoco import engine
from dm_control.rl import control
from dm_control.suite import common, hopper
from dm_control.utils import rewards

logging.set_verbosity(logging.ERROR)  # else every worker repeats a deprecation of the cheetah's model
EPISODE_FRAMES = 1000
GRAY_FLOOR = ("walker", "cheetah", "hopper", "stacker")  # their floor tells how fast they move, so it must stay visible


class DMC(gymnasium.Env):
    """`domain`-`task` seen by camera 0; an episode is 1000 raw frames, whatever the suite's own clock says."""

    render_mode = "rgb_array"

    def __init__(self, domain, task, *, seed=0, action_repeat=2, fast=True, recolor=True, soft_hopper=False, size=64):
        self.action_repeat = action_repeat
        with recolored(domain) if recolor else contextlib.nullcontext():
            self.dm = suite.load(domain, task, task_kwargs={"random": seed % 2**32, "time_limit": float("inf")})
        if soft_hopper and domain == "hopper":
            soft = SoftHopper(hopping=task == "hop", random=seed % 2**32)
            self.dm = control.Environment(self.dm.physics, soft, control_timestep=self.dm.control_timestep())
        self.dm.task.get_observation = lambda physics: {}  # pictures are all that is observed
        fps = round(1 / (self.dm.control_timestep() * action_repeat))
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}
        self.camera = build_camera(self.dm.physics, size, fast)
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8)
        spec = self.dm.action_spec()
        self.center, self.half = action_scale(spec.minimum, spec.maximum)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, spec.shape, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.dm.task.random.seed(seed % 2**32)
        self.dm.reset()
        self.frames = 0
        return self._look(), {}

    def step(self, action):
        force = self.center + self.half * np.clip(np.asarray(action, np.float64), -1, 1)
        reward, terminated = 0.0, False
        for _ in range(self.action_repeat):
            try:
                timestep = self.dm.step(force)
            except control.PhysicsError:  # MuJoCo lost the state, rarely, after a hard blow: no reason to lose the run
                return self.frame, float(reward), False, True, {}
            reward += timestep.reward
            self.frames += 1
            terminated = timestep.last()  # there is no clock inside, so the task itself has ended
            if terminated or self.frames == EPISODE_FRAMES:
                break
        return self._look(), float(reward), terminated, self.frames >= EPISODE_FRAMES, {}

    def render(self):
        return self.frame

    def close(self):
        self.dm.physics.free()

    def _look(self):
        self.frame = np.ascontiguousarray(self.camera.render())
        return self.frame


def action_scale(low, high):
    """Centre and half width that map [-1, 1] to the simulator's bounds; an actuator without bounds takes [-1, 1]."""
    bounded = (low > -mujoco.mjMAXVAL) & (high < mujoco.mjMAXVAL)
    return np.where(bounded, (low + high) / 2, 0.0), np.where(bounded, (high - low) / 2, 1.0)


def build_camera(physics, size, fast):
    """One camera for the whole life of an environment: `physics.render` would build one per picture."""
    if fast:  # must precede the GL context, which takes its buffers and shapes from here
        physics.model.vis.quality.offsamples = 0
        physics.model.vis.quality.shadowsize = 0
        # A capsule of 12 x 6 faces instead of 28 x 16: 0.31 instead of 0.76 ms a picture, and of a walker's 4096 pixels
        # 55 differ by more than 8 of 256, 4 by more than 32.
        physics.model.vis.quality.numslices = 12
        physics.model.vis.quality.numstacks = 6
        physics.model.vis.global_.offwidth = physics.model.vis.global_.offheight = size
    camera = engine.Camera(physics, size, size, camera_id=0)
    if fast:
        camera.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        camera.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    return camera


@contextlib.contextmanager
def recolored(domain):
    """Load models whose background, and nothing else, is more blue than red and green.

    The sky loses its white stars, decorations such as the cartpole's rail lose their blue. The floor turns gray, where
    it is part of what the agent must see, or fully blue.
    """
    stock = dict(common.ASSETS)
    dark, light = (".1 .1 .1", ".2 .2 .2") if domain in GRAY_FLOOR else (".1 .1 .4", ".2 .2 .8")
    edits = {
        "materials": {"texture[@name='grid']": {"rgb1": dark, "rgb2": light, "markrgb": dark},
                      "material[@name='decoration']": {"rgba": ".7 .5 .3 1"}},
        "skybox": {"texture[@name='skybox']": {"markrgb": "0 0 0"}},
    }  # fmt: skip
    for file, elements in edits.items():
        name = f"./common/{file}.xml"
        root = ET.fromstring(stock[name])
        for path, attributes in elements.items():
            root.find(f".//{path}").attrib.update(attributes)
        common.ASSETS[name] = ET.tostring(root)
    try:
        yield
    finally:
        common.ASSETS.update(stock)


class SoftHopper(hopper.Hopper):
    """The authors' hopper: a reward that fades below the standing height, where the stock one is 0 or 1."""

    def get_reward(self, physics):
        standing = rewards.tolerance(physics.height(), bounds=(0.6, float("inf")), margin=0.3)
        if self._hopping:
            speed = physics.speed()
            return standing * rewards.tolerance(speed, (2, float("inf")), 1, sigmoid="linear", value_at_margin=0.5)
        effort = rewards.tolerance(physics.control(), margin=1, value_at_margin=0, sigmoid="quadratic")
        return standing * (4 + effort.mean()) / 5
