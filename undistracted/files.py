"""Folders that can be written to, files that are written whole or not at all, and what is said of a damaged one."""

import json
import os
from pathlib import Path
from tempfile import TemporaryFile
from uuid import uuid4

from safetensors import SafetensorError
from safetensors.numpy import load_file

from undistracted.errors import UserError


def check_folder(path: Path, flag: str) -> None:
    """Tell before the work, not after it, that a folder cannot be made or written to; leaves no trace of its own."""
    try:
        there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        with TemporaryFile(dir=there):  # permissions alone do not tell: /proc refuses even root
            pass
    except OSError as e:
        raise UserError(f"cannot write to {path} ({e.strerror}); name another folder with {flag}") from None


def cache_folder() -> Path:
    """Decoded films, and what was compiled or translated."""
    return Path(os.environ.get("UNDISTRACTED_CACHE") or Path.home() / ".cache" / "undistracted")


def write_whole(path: Path, text: str) -> None:
    """A full disk must not cost what was there before, nor one writer what another writes at the same time."""
    partial = path.with_name(f".{path.name}.{uuid4().hex}.partial")
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
