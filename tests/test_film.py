"""Films written beside training."""

import numpy as np

from undistracted.film import FilmWriter

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
