"""Films of a folder: which files each split gets, that they are decoded once, and what a broken one costs."""

import os
import warnings

import av
import numpy as np
import pytest

from undistracted.envs import clips_of, video
from undistracted.errors import UserError

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def decoded(monkeypatch):
    """The files decoded so far."""
    files, decode = [], video.decode
    monkeypatch.setattr(video, "decode", lambda file, color: files.append(file.name) or decode(file, color))
    return files


def write_video(file, tone=100, frames=5, rgb=None, size=(96, 80)):
    """A flat film of one tone, or one colour."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        picture = np.broadcast_to(np.uint8(rgb or (tone, tone, tone)), (size[1], size[0], 3))
        for _ in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")))
        container.mux(stream.encode())


def test_folder_with_its_own_split(tmp_path):
    for split, tone in (("train", 50), ("train/deeper", 90), ("test", 200), ("unrelated", 0)):
        write_video(tmp_path / split / "film.mp4", tone)
    train, test = clips_of(tmp_path, "train"), clips_of(str(tmp_path), "test")
    assert train.names == ("train/deeper/film.mp4", "train/film.mp4")
    assert test.names == ("test/film.mp4",)
    assert [film.shape for film in train.frames] == [(5, 64, 64)] * 2
    assert [round(film.mean() / 10) for film in (*train.frames, *test.frames)] == [9, 5, 20]
    assert len(clips_of(tmp_path, "clean")) == 0


def test_folder_without_a_split_is_split_by_name(tmp_path):
    for index in range(60):
        (tmp_path / f"film{index}.mp4").touch()
    (tmp_path / "notes.txt").touch()
    files = video.split_files(tmp_path)
    assert not set(files["train"]) & set(files["test"])
    assert len(files["train"]) + len(files["test"]) == 60
    assert 5 <= len(files["test"]) <= 20
    (tmp_path / "another.mp4").touch()
    later = video.split_files(tmp_path)
    assert all(set(files[split]) <= set(later[split]) for split in files), "a new file moves no other"


@pytest.mark.parametrize("count", [2, 3, 5])
def test_no_split_is_empty(tmp_path, count):
    for index in range(count):
        (tmp_path / f"{index}.webm").touch()
    files = video.split_files(tmp_path)
    assert min(len(files["train"]), len(files["test"])) >= 1


def test_colour(tmp_path):
    for name in "ab":
        write_video(tmp_path / f"{name}.mp4", rgb=(200, 40, 40))
    film = clips_of(tmp_path, "train", color=True)[0]
    assert film.shape == (5, 64, 64, 3)
    np.testing.assert_allclose(film.mean((0, 1, 2)), (200, 40, 40), atol=8)
    assert clips_of(tmp_path, "train")[0].ndim == 3, "gray is cached apart"


def test_long_videos_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "MAX_FRAMES", 7)
    for name in "ab":
        write_video(tmp_path / f"{name}.mp4", frames=12)
    assert len(clips_of(tmp_path, "train")[0]) == 7


def test_a_file_is_decoded_once(tmp_path, decoded, cache):
    for name in "ab":
        write_video(tmp_path / f"{name}.mp4", tone=30)
    first = clips_of(tmp_path, "train")
    video.load_file.cache_clear()  # as a new process would
    again = clips_of(tmp_path, "train")
    assert len(decoded) == 1
    assert isinstance(again[0], np.memmap) and np.array_equal(first[0], again[0])
    assert [file.suffix for file in cache.iterdir()] == [".npy"], "nothing but whole films"
    source = tmp_path / first.names[0]
    os.utime(source, (1, 1))  # same size, another time
    clips_of(tmp_path, "train")
    assert len(decoded) == 2
    write_video(source, tone=220, frames=6)
    assert clips_of(tmp_path, "train")[0].mean() == pytest.approx(220, abs=5), "a changed file is decoded again"


def test_a_torn_cache_file_is_made_again(tmp_path, decoded, cache):
    for name in "ab":
        write_video(tmp_path / f"{name}.mp4")
    clips_of(tmp_path, "train")
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    video.load_file.cache_clear()
    assert clips_of(tmp_path, "train")[0].shape == (5, 64, 64)
    assert len(decoded) == 2


@pytest.mark.parametrize("content", [b"", b"this is not a video" * 100])
def test_an_unreadable_file_is_skipped_with_one_warning(tmp_path, decoded, content):
    write_video(tmp_path / "train" / "good.mp4")
    write_video(tmp_path / "test" / "good.mp4")
    (tmp_path / "train" / "broken.mp4").write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names = [clips_of(tmp_path, "train").names for _ in range(3)]
    assert names == [("train/good.mp4",)] * 3
    assert len(caught) == 1 and "broken.mp4" in str(caught[0].message)
    assert decoded.count("broken.mp4") == 1


def damage(file, which: slice):
    """Overwrite some of a video's packets."""
    with av.open(str(file)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(file.read_bytes())
    for place, size in places[which]:
        data[place : place + size] = bytes(size)
    file.write_bytes(data)


@pytest.mark.parametrize("damaged", [0, 3])
def test_a_damaged_frame_costs_that_frame(tmp_path, damaged):
    for split in ("train", "test"):
        write_video(tmp_path / split / "film.mp4", frames=30)
    damage(tmp_path / "train" / "film.mp4", slice(damaged, damaged + 1))
    with pytest.warns(UserWarning, match="damaged.*film.mp4") as caught:
        film = clips_of(tmp_path, "train")[0]
    assert len(caught) == 1 and len(film) in range(17, 30), "before the damage and, from the next key frame, after it"
    assert round(film[:damaged].mean() if damaged else film[-1].mean()) in range(95, 106)


def test_a_video_of_nothing_but_damage_is_skipped(tmp_path):
    for split in ("train", "test"):
        write_video(tmp_path / split / "film.mp4")
    damage(tmp_path / "train" / "film.mp4", slice(None))
    with pytest.warns(UserWarning, match="skipped .*film.mp4"), pytest.raises(UserError, match="no usable video"):
        clips_of(tmp_path, "train")


def test_no_usable_video(tmp_path):
    with pytest.raises(UserError, match="no video folder"):
        clips_of(tmp_path / "missing", "train")
    with pytest.raises(UserError, match="no video files"):
        clips_of(tmp_path, "train")
    (tmp_path / "a.mp4").write_bytes(b"nothing")
    with pytest.raises(UserError, match="only one video"):
        clips_of(tmp_path, "train")
    (tmp_path / "b.mp4").write_bytes(b"nothing")
    with pytest.warns(UserWarning), pytest.raises(UserError, match="no usable video"):
        clips_of(tmp_path, "train")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNDISTRACTED_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="UNDISTRACTED_CACHE"):
        clips_of(None, "train")


def test_a_full_disk_leaves_nothing_behind(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match="No space left"):
        video.cached("film", lambda: np.zeros(3))
    assert not list(cache.iterdir())


def test_official_loop(tmp_path):
    for index in range(4):
        write_video(tmp_path / "train" / f"{index}.mp4", tone=60 * index + 20, frames=300)
    write_video(tmp_path / "test" / "t.mp4", tone=255)
    loops = [clips_of(tmp_path, split, protocol="official", seed=seed)
             for split, seed in (("train", 0), ("test", 0), ("train", 1))]  # fmt: skip
    assert [loop[0].shape for loop in loops] == [(1000, 64, 64)] * 3
    assert np.array_equal(loops[0][0], loops[1][0]), "the test split sees the training loop"
    assert loops[0].names != loops[2].names
    train = clips_of(tmp_path, "train")
    films = dict(zip(train.names, train.frames, strict=True))
    joined = np.concatenate([films[name] for name in loops[0].names])[:1000]
    assert np.array_equal(loops[0][0], joined)
