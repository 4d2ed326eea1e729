"""Films that are made up: which each split gets, that they are made once, and what they look like."""

import numpy as np
import pytest

from undistracted.envs import clips_of, procedural


def test_procedural_splits_are_disjoint_and_cached(cache, monkeypatch):
    monkeypatch.setattr(procedural, "SEEDS", {split: seeds[:3] for split, seeds in procedural.SEEDS.items()})
    train, test = clips_of(None, "train"), clips_of(None, "test")
    assert len({film.tobytes() for film in (*train.frames, *test.frames)}) == 6
    assert not set(train.names) & set(test.names)
    monkeypatch.setattr(procedural, "film", lambda *_: pytest.fail("made twice"))
    assert np.array_equal(clips_of(None, "train")[2], train[2])


def test_procedural_split_seeds():
    train, test = (set(procedural.SEEDS[split]) for split in ("train", "test"))
    assert (len(train), len(test)) == (40, 20) and not train & test


@pytest.mark.parametrize("color", [False, True])
def test_procedural_films_move_slowly_and_loop(color):
    film = procedural.film(5, color)
    assert film.shape == (200, 64, 64, 3) if color else (200, 64, 64)
    assert np.array_equal(film, procedural.film(5, color)) and film.dtype == np.uint8
    change = np.abs(np.diff(film.astype(float), axis=0, append=film[:1])).mean(axis=tuple(range(1, film.ndim)))
    assert 0.5 < change.mean() < 10, "moves, and is not noise"
    assert change[-1] < 1.5 * change[:-1].max(), "the last frame leads to the first"
    if color:
        assert np.abs(film[..., 0].astype(float) - film[..., 2]).mean() > 2


@pytest.mark.parametrize("seed", [0, 17, 1003])
def test_procedural_films_have_a_natural_spectrum(seed):
    film = procedural.film(seed)[::20].astype(float)
    pictures = (film - film.mean((1, 2), keepdims=True)) * np.hanning(64)[:, None] * np.hanning(64)
    power = (np.abs(np.fft.fft2(pictures)) ** 2).mean(0)
    frequency = np.fft.fftfreq(64, 1 / 64)
    radius = np.rint(np.hypot(frequency[:, None], frequency)).astype(int)
    radial = np.bincount(radius.ravel(), power.ravel()) / np.bincount(radius.ravel())
    rings = np.arange(2, 28)
    slope, _ = np.polyfit(np.log(rings), np.log(radial[rings]), 1)
    assert -3.5 < slope < -1.5
    assert 15 < film.std((1, 2)).mean() < 70, "the contrast of real video"
