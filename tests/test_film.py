"""Films written beside training."""

import numpy as np
from matplotlib.image import imread

from undistracted.film import FilmWriter, sheet

FRAMES = {"test": [np.zeros((16, 16, 3), np.uint8)] * 3}


def test_a_film_is_there_once_the_writer_is_closed(tmp_path):
    said = []
    writer = FilmWriter(said.append)
    writer.write(tmp_path / "videos" / "1.mp4", FRAMES)
    writer.close()
    assert [p.name for p in (tmp_path / "videos").iterdir()] == ["1.mp4"] and not said


def test_a_film_that_cannot_be_written_costs_one_line(tmp_path):
    (tmp_path / "videos").write_text("a file where the folder should be")
    said = []
    writer = FilmWriter(said.append)
    writer.write(tmp_path / "videos" / "1.mp4", FRAMES)
    writer.close()
    assert len(said) == 1 and "1.mp4" in said[0] and "\n" not in said[0]


def test_a_sheet_has_a_film_a_row_and_a_moment_a_column(tmp_path):
    films = {name: np.full((11, 64, 64, 3), base, np.uint8) + np.arange(11, dtype=np.uint8)[:, None, None, None]
             for name, base in (("seen", 100), ("decoded", 200))}  # fmt: skip
    picture = sheet(films, moments=3)
    assert picture[::64, ::64, 0].tolist() == [[100, 105, 110], [200, 205, 210]]
    said = []
    writer = FilmWriter(said.append)
    writer.write(tmp_path / "videos" / "1.png", picture)
    writer.close()
    read = imread(tmp_path / "videos" / "1.png")
    np.testing.assert_allclose(read[..., :3] * 255, picture, atol=0.5)
    assert not said
