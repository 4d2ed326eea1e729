"""Films of what the agent sees, as mp4."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np

SCALE = 4
FRAMES_PER_SECOND = 25


def side_by_side(frames: dict[str, list[np.ndarray]]) -> np.ndarray:
    """Episodes of several splits next to each other, enlarged; the shorter ones hold their last frame."""
    length = max(map(len, frames.values()))
    columns = [np.stack(f + f[-1:] * (length - len(f))) for f in frames.values()]
    return np.concatenate(columns, 2).repeat(SCALE, 1).repeat(SCALE, 2)


def write_film(path: Path, frames: dict[str, list[np.ndarray]]) -> None:
    """An mp4 at half the speed of the simulation's frames, written whole or not at all."""
    film = side_by_side(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.partial.mp4")
    with av.open(str(partial), "w") as container:
        stream = container.add_stream("h264", rate=FRAMES_PER_SECOND)
        stream.height, stream.width = film.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in film:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())
    partial.replace(path)


class FilmWriter:
    """Writes films while training goes on. One that cannot be written costs a line on the terminal, not the run."""

    def __init__(self, say: Callable[[str], None]):
        self.say, self.thread = say, ThreadPoolExecutor(1)

    def write(self, path: Path, frames: dict[str, list[np.ndarray]]) -> None:
        self.thread.submit(self._write, path, frames)

    def close(self) -> None:
        """Wait for the films that are still being written."""
        self.thread.shutdown()

    def _write(self, path, frames):
        try:
            write_film(path, frames)
        except Exception as e:  # whatever it is: a thread would swallow it
            self.say(f"no film {path}: {e}")
