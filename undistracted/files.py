"""Files that are written whole or not at all: a full disk must not cost what was there before."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, newline="")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
