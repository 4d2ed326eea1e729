"""A run's directory: resumed by its name, and one process's at a time."""

import os

from test_checkpoint import command

from undistracted import checkpoint
from undistracted.__main__ import main
from undistracted.rundir import claimed


def test_a_run_is_resumed_by_its_directory_alone(tmp_path, capsys):
    assert main(command(tmp_path, 100, "--seed", "3")) == 0
    done = checkpoint.newest(tmp_path)
    assert main(["train", "--resume", "--run", str(tmp_path), "--steps", str(done + 20)]) == 0
    assert checkpoint.newest(tmp_path) >= done + 20
    before = (tmp_path / "config.json").read_text()
    assert main(["train", "--resume", "--run", str(tmp_path), "--steps", "50"]) == 2
    assert f"is at step {checkpoint.newest(tmp_path)} already" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_text() == before


def test_no_two_processes_train_into_one_directory(tmp_path, capsys):
    with claimed(tmp_path):
        assert main(command(tmp_path, 100)) == 2
    assert f"error: process {os.getpid()} trains into {tmp_path}" in capsys.readouterr().err
    with claimed(tmp_path):
        pass
