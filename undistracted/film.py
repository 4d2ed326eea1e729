"""Films of what the agent sees and makes of it, as mp4 and as sheets of pictures."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
from matplotlib.image import imsave

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


def sheet(films: dict[str, np.ndarray], moments: int = 8) -> np.ndarray:
    """Films (T, 64, 64, 3) one below the other, each at the same moments from left to right."""
    length = len(next(iter(films.values())))
    chosen = np.linspace(0, length - 1, moments).round().astype(int)
    return np.concatenate([np.concatenate([*film[chosen]], 1) for film in films.values()])


def png(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    imsave(file, picture, format="png")
    return file.getvalue()


class FilmWriter:
    """Writes films while training goes on. One that cannot be written costs a line on the terminal, not the run."""

    def __init__(self, say: Callable[[str], None]):
        self.say, self.thread = say, ThreadPoolExecutor(1)

    def write(self, path: Path, film: dict[str, list[np.ndarray]] | np.ndarray) -> None:
        """A film of one or more columns, or a single picture."""
        self.thread.submit(self._write, path, film)

    def close(self) -> None:
        """Wait for the films that are still being written."""
        self.thread.shutdown()

    def _write(self, path, film):
        try:
            if isinstance(film, dict):
                write_film(path, film)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(png(film))
        except Exception as e:  # whatever it is: a thread would swallow it
            self.say(f"no film {path}: {e}")
