"""What is said of a damaged file, and of a folder that cannot be written to."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from undistracted.errors import UserError
from undistracted.files import check_folder, read_arrays


def test_arrays_cut_short_are_told(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"x": np.arange(100)}, path)
    assert (read_arrays(path)["x"] == np.arange(100)).all()
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"x.safetensors is damaged .*; put an undamaged copy in its place"):
        read_arrays(path)


def test_a_folder_that_cannot_be_written_to_is_told_and_none_is_made(tmp_path):
    check_folder(tmp_path / "new" / "folder", "--out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "folder", Path("/proc"), Path("/proc/new/folder")):
        with pytest.raises(UserError, match=rf"cannot write to {path} \(.+\); name another folder with --out"):
            check_folder(path, "--out")
