"""Films as small uint8 arrays, from a folder of video files or made up, and the cache that keeps them."""

import functools
import hashlib
import itertools
import multiprocessing
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from undistracted.errors import UserError
from undistracted.files import cache_folder

SPLITS = ("train", "test", "clean")
PROTOCOLS = ("random", "official")
SIZE = 64  # pixels a side
MAX_FRAMES = 3000  # per file; the rest of a long video is never decoded
OFFICIAL_FRAMES = 1000  # length of the one loop of the official protocol
TEST_SHARE = 0.2  # of a folder without train/ and test/
VIDEO_SUFFIX = re.compile(r"\.(3gp|asf|avi|flv|gif|m4v|mkv|mov|mp4|mpe?g|mts|og[gv]|ts|webm|wmv)", re.IGNORECASE)


@dataclass(frozen=True)
class Clips:
    """Films (N, 64, 64) in gray or (N, 64, 64, 3) in colour, memory-mapped so that processes share them."""

    frames: tuple[np.ndarray, ...]
    names: tuple[str, ...]

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index) -> np.ndarray:
        return self.frames[index]


def clips_of(videos, split: str, color: bool = False, protocol: str = "random", seed: int = 0) -> Clips:
    """The films of one split; their `names` say which files, relative to `videos`, the split uses."""
    if split == "clean":
        return Clips((), ())
    if protocol == "official":
        return official_loop(clips_of(videos, "train", color), seed)
    if videos is None:
        from undistracted.envs import procedural

        seeds = procedural.SEEDS[split]
        kind = f"procedural-{procedural.VERSION}-{'color' if color else 'gray'}"
        films = [cached(f"{kind}-{s}", functools.partial(procedural.film, s, color)) for s in seeds]
        return Clips(tuple(films), tuple(f"{kind}-{s}" for s in seeds))
    files = split_files(videos)[split]
    films = load_files(files, color)
    if not films:
        raise UserError(f"no usable video for the {split} split in '{videos}': give a folder with more video files")
    root = Path(videos).expanduser().resolve()
    return Clips(tuple(films.values()), tuple(file.relative_to(root).as_posix() for file in films))


def official_loop(clips: Clips, seed: int) -> Clips:
    """Clips in an order drawn from `seed`, joined and cut (or repeated) to 1000 frames."""
    order = np.random.default_rng(seed).permutation(len(clips))
    frames, names, length = [], [], 0
    for index in order:
        frames.append(clips[index][: OFFICIAL_FRAMES - length])
        names.append(clips.names[index])
        length += len(frames[-1])
        if length == OFFICIAL_FRAMES:
            break
    joined = np.concatenate(frames)
    return Clips((np.resize(joined, (OFFICIAL_FRAMES, *joined.shape[1:])),), tuple(names))


def split_files(videos) -> dict[str, list[Path]]:
    """Video files by split: the folder's own train/ and test/ if it has both, else by a hash of each file's name."""
    root = Path(videos).expanduser().resolve()
    if not root.is_dir():
        raise UserError(f"no video folder at '{videos}': give an existing folder of video files")
    if (root / "train").is_dir() and (root / "test").is_dir():
        return {split: find_videos(root / split) for split in ("train", "test")}
    files = find_videos(root)
    if len(files) == 1:
        raise UserError(f"only one video in '{videos}': give at least two, so that one can be kept for the test split")

    def place(file):  # in [0, 1), the same on every machine and whatever other files there are
        return int.from_bytes(hashlib.sha256(file.relative_to(root).as_posix().encode()).digest()[:8]) / 2**64

    files = sorted(files, key=place)
    tests = min(max(sum(place(file) < TEST_SHARE for file in files), 1), len(files) - 1)
    return {"train": sorted(files[tests:]), "test": sorted(files[:tests])}


def find_videos(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if VIDEO_SUFFIX.fullmatch(file.suffix) and file.is_file())
    if not files:
        raise UserError(f"no video files in '{folder}': it needs files such as .mp4, .webm or .mkv")
    return files


def load_files(files: list[Path], color: bool) -> dict[Path, np.ndarray]:
    """The films of the files that can be read, decoded now if the cache does not have them."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    quiet = not console.is_terminal or multiprocessing.parent_process() is not None

    def load(file: Path) -> np.ndarray | None:
        stat = file.stat()
        return load_file(file, stat.st_size, stat.st_mtime_ns, color, str(cache_folder()))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding releases the interpreter
        loaded = pool.map(load, files)
        loaded = list(track(loaded, "loading videos", len(files), console=console, transient=True, disable=quiet))
    return {file: film for file, film in zip(files, loaded, strict=True) if film is not None}


@functools.cache
def load_file(file: Path, size: int, mtime_ns: int, color: bool, cache: str) -> np.ndarray | None:
    """One file's film, or None with a warning. Remembered by all arguments, so that each file fails at most once."""
    import av

    key = hashlib.sha256(f"{file}|{size}|{mtime_ns}|{SIZE}|{MAX_FRAMES}|{color}".encode()).hexdigest()[:32]
    try:
        return cached(key, functools.partial(decode, file, color))
    except (av.FFmpegError, ValueError) as error:
        warn(f"skipped '{file}': not a readable video ({error})")
        return None


def warn(text: str) -> None:
    if multiprocessing.parent_process() is None:  # workers load the same files: the parent has said it
        warnings.warn(text, stacklevel=3)


def decode(file: Path, color: bool) -> np.ndarray:
    """Frames squeezed to 64x64, one at a time so that a long video never lies in memory at full size.

    What is damaged is left out: a film of a few frames less is as good a distraction.
    """
    import av
    from av.video.reformatter import Interpolation

    frames, damage = [], []

    def whole(packets):
        for packet in packets:
            try:
                yield from packet.decode()
            except av.FFmpegError as error:
                damage.append(error)

    with av.open(str(file)) as container:
        if not container.streams.video:
            raise ValueError("it has no video stream")
        container.streams.video[0].codec_context.thread_count = 1  # files are decoded in parallel already
        for frame in itertools.islice(whole(container.demux(video=0)), MAX_FRAMES):
            small = frame.reformat(SIZE, SIZE, "rgb24" if color else "gray", interpolation=Interpolation.AREA)
            frames.append(small.to_ndarray())
    if not frames:
        raise ValueError("it has no frames" if not damage else damage[0])
    if damage:
        warn(f"left out what is damaged of '{file}' ({damage[0]}); {len(frames)} frames are used")
    return np.stack(frames)


def cached(name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array kept under `name`, made and written first if need be; always memory-mapped."""
    folder = cache_folder()
    file = folder / f"{name}.npy"
    try:
        return np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # missing, or not whole
        array = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
            np.save(Path(scratch, "film.npy"), array)
            os.replace(Path(scratch, "film.npy"), file)  # atomic: another process sees the whole film or none
    except OSError as error:
        raise UserError(
            f"cannot write the video cache '{folder}' ({error.strerror}): free some space, or point UNDISTRACTED_CACHE "
            "at a folder with room"
        ) from error
    return np.load(file, mmap_mode="r")
