"""Made-up films with the statistics of natural ones: occluding, textured layers that drift past the camera.

A layer is a torus of dead leaves: shapes of all sizes that hide each other, each with a tone and a cloudy texture of
its own. Nearer layers have gaps and move faster. Everything moves on closed paths, so a film loops without a seam.
"""

import numpy as np

VERSION = 1  # change it whenever a film would come out different: the cache is keyed by it
SEEDS = {"train": range(40), "test": range(1000, 1020)}
FRAMES = 200
SIZE = 64
TORUS = 128  # side of a layer in pixels


def film(seed: int, color: bool = False) -> np.ndarray:
    """One film, (200, 64, 64) or (200, 64, 64, 3) uint8, decided by `seed`."""
    rng = np.random.default_rng([seed, VERSION])
    channels = 3 if color else 1
    heading = rng.uniform(0, 2 * np.pi)
    layers = [
        (*leaves(rng, channels, count=60, gaps=False), *path(rng, 0, heading)),
        (*leaves(rng, channels, count=5), *path(rng, 1, heading)),
        (*leaves(rng, channels, count=2), *path(rng, 2, heading + rng.normal(0, 0.5))),
    ]
    brightness, contrast = rng.uniform(0.3, 0.6), rng.uniform(0.1, 0.2)
    frames = np.empty((FRAMES, SIZE, SIZE, channels), np.uint8)
    for t in range(FRAMES):
        picture = 0.0
        for tone, opacity, ys, xs in layers:
            here = window(opacity, ys[t], xs[t])
            picture = picture * (1 - here) + window(tone, ys[t], xs[t]) * here
        frames[t] = np.clip(255 * (brightness + contrast * picture), 0, 255)
    return frames if color else frames[..., 0]


def path(rng, laps: int, heading: float):
    """The window's corner in each frame, y and x: whole laps around the torus along `heading`, and a slow sway."""
    time = np.arange(FRAMES) / FRAMES
    drift = TORUS * np.rint(laps * np.array([np.sin(heading), np.cos(heading)]))
    sway = rng.uniform(4, 16, 2)[:, None] * np.sin(2 * np.pi * (time + rng.uniform(size=(2, 1))))
    return rng.uniform(0, TORUS, 2)[:, None] + drift[:, None] * time + sway


def leaves(rng, channels: int, count: int, gaps: bool = True):
    """Tone, of about unit variance, and opacity of one layer, wrapped so that any window is one slice."""
    texture = clouds(rng)
    tone = np.repeat(texture[..., None], channels, axis=-1)
    opacity = np.full((TORUS, TORUS, 1), 0.0 if gaps else 1.0)
    for _ in range(count):
        shape = leaf(rng, rough=texture, radius=5 / np.sqrt(rng.uniform(0.02, 1)))  # the power law of sizes in nature
        tint = rng.normal(0, 0.4, channels) if channels == 3 else 0.0
        shade = rng.uniform(-1.7, 1.7) + tint + 0.4 * np.roll(texture, rng.integers(TORUS, size=2), (0, 1))[..., None]
        tone = tone * (1 - shape) + shade * shape
        opacity = np.maximum(opacity, shape)
    wrap = ((0, SIZE + 1), (0, SIZE + 1), (0, 0))
    return np.pad(tone, wrap, "wrap").astype(np.float32), np.pad(opacity, wrap, "wrap").astype(np.float32)


def leaf(rng, rough: np.ndarray, radius: float):
    """Opacity (TORUS, TORUS, 1) of a turned, stretched disc somewhere on the torus, its outline bent by `rough`."""
    y, x = ((np.arange(TORUS) - center + TORUS / 2) % TORUS - TORUS / 2 for center in rng.uniform(0, TORUS, 2))
    angle, stretch = rng.uniform(0, np.pi), rng.uniform(1, 2)
    along = y[:, None] * np.sin(angle) + x * np.cos(angle)
    across = y[:, None] * np.cos(angle) - x * np.sin(angle)
    distance = np.hypot(along / stretch, across * stretch) + 0.15 * radius * rough
    return np.clip((radius - distance) / 1.5 + 0.5, 0, 1)[..., None]


def clouds(rng):
    """A periodic random picture of unit variance with the steep spectrum of soft natural textures."""
    frequency = np.hypot(np.fft.fftfreq(TORUS)[:, None], np.fft.rfftfreq(TORUS))
    frequency[0, 0] = np.inf
    picture = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(TORUS, TORUS))) / frequency**1.35)
    return picture / picture.std()


def window(layer, y: float, x: float):
    """The 64x64 part of a wrapped layer whose corner is at (y, x), linear between pixels."""
    y, x = y % TORUS, x % TORUS
    row, column = int(y), int(x)
    part = layer[row : row + SIZE + 1, column : column + SIZE + 1]
    part = part[:-1] + np.float32(y - row) * (part[1:] - part[:-1])
    return part[:, :-1] + np.float32(x - column) * (part[:, 1:] - part[:, :-1])
