"""What is said of a damaged file."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from undistracted.errors import UserError
from undistracted.files import read_arrays


def test_arrays_cut_short_are_told(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"x": np.arange(100)}, path)
    assert (read_arrays(path)["x"] == np.arange(100)).all()
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"x.safetensors is damaged .*; put an undamaged copy in its place"):
        read_arrays(path)
