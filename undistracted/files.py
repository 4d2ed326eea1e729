"""Files that are written whole or not at all, and what is said of one that is damaged all the same."""

import json
import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from undistracted.errors import UserError


def write_whole(path: Path, text: str) -> None:
    """A full disk must not cost what was there before."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, newline="")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except ValueError as e:
        raise UserError(f"{path} is damaged ({e}); mend it, or put an undamaged copy in its place") from None


def read_arrays(path: Path) -> dict:
    try:
        return load_file(path)
    except SafetensorError as e:
        raise UserError(f"{path} is damaged ({e}); put an undamaged copy in its place") from None
