"""Films behind an agent, and a scoreboard in front of it: wrappers over environments that show clean pictures."""

import gymnasium
import numpy as np

from undistracted.envs.video import Clips


def background_mask(frame):
    """The pixels that are more blue than green and red: sky, and blue floors."""
    red, green, blue = frame[..., 0], frame[..., 1], frame[..., 2]
    return (blue > green) & (blue > red)


def composite(frame, background):
    """`frame` (H, W, 3) with its background pixels taken from `background`, gray (H, W) or colour (H, W, 3)."""
    colours = np.ascontiguousarray(np.moveaxis(frame, -1, 0))  # one plane a colour: half the time of pixel by pixel
    film = background if background.ndim == 2 else np.moveaxis(background, -1, 0)
    return np.ascontiguousarray(np.moveaxis(np.where(background_mask(frame), film, colours), 0, -1))


class Distracted(gymnasium.Wrapper):
    """Shows a film where the picture is background; it runs one film frame per raw frame of the simulator.

    With `rewind`, every episode draws a clip and a position in it. Without, the film never stops: it starts somewhere
    when the environment is seeded, and only moves on by one frame at each further reset.
    """

    def __init__(self, env: gymnasium.Env, clips: Clips, *, rewind: bool = True):
        super().__init__(env)
        self.clips, self.rewind = clips, rewind
        self.speed = env.get_wrapper_attr("action_repeat")
        self.clip = None

    def reset(self, *, seed=None, options=None):
        frame, info = self.env.reset(seed=seed, options=options)
        if self.rewind or seed is not None or self.clip is None:
            self.clip = int(self.np_random.integers(len(self.clips)))
            self.position = int(self.np_random.integers(len(self.clips[self.clip])))
        else:
            self.position += 1
        return self._show(frame), info

    def step(self, action):
        frame, reward, terminated, truncated, info = self.env.step(action)
        self.position += self.speed
        return self._show(frame), reward, terminated, truncated, info

    def render(self):
        return self.frame

    def _show(self, frame):
        film = self.clips[self.clip]
        self.frame = composite(frame, film[self.position % len(film)])
        return self.frame


class Scoreboard(gymnasium.Wrapper):
    """Writes the episode's return so far into the top left corner, to one decimal."""

    def reset(self, *, seed=None, options=None):
        frame, info = self.env.reset(seed=seed, options=options)
        self.score = 0.0
        return self._write(frame), info

    def step(self, action):
        frame, reward, terminated, truncated, info = self.env.step(action)
        self.score += reward
        return self._write(frame), reward, terminated, truncated, info

    def render(self):
        return self.frame

    def _write(self, frame):
        text = draw(f"{self.score:.1f}")[:, : frame.shape[1]]
        self.frame = frame.copy()
        self.frame[: text.shape[0], : text.shape[1]] = text[..., None]
        return self.frame


GLYPHS = {
    "0": "### #.# #.# #.# ###", "1": ".#. ##. .#. .#. ###", "2": "### ..# ### #.. ###", "3": "### ..# ### ..# ###",
    "4": "#.# #.# ### ..# ..#", "5": "### #.. ### ..# ###", "6": "### #.. ### #.# ###", "7": "### ..# ..# ..# ..#",
    "8": "### #.# ### #.# ###", "9": "### #.# ### ..# ###", ".": ". . . . #", "-": "... ... ### ... ...",
}  # fmt: skip


def draw(text: str):
    """White characters of 6x10 pixels on black, a uint8 array 14 pixels high."""
    glyphs = [np.array([list(row) for row in GLYPHS[char].split()]) == "#" for char in text]
    spaced = np.hstack([np.pad(glyph, ((1, 1), (1, 0))) for glyph in glyphs])
    return 255 * np.kron(np.pad(spaced, ((0, 0), (0, 1))), np.ones((2, 2), np.uint8)).astype(np.uint8)
