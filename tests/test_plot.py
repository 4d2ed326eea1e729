"""Learning curves: what is averaged over what, which episodes count, and what is told of a mistake."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from undistracted.__main__ import main
from undistracted.adapt.config import preset_adapt
from undistracted.errors import UserError
from undistracted.plot import PlotConfig, Point, divide, interval, plot, source
from undistracted.presets import preset_config


def curve(path, rows):
    """An eval.csv of (step, seed, split, return)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "seed", "split", "episode", "return", "length", "success"])
        writer.writerows([step, seed, split, 0, reward, 500, ""] for step, seed, split, reward in rows)
    return str(path)


def test_episodes_are_averaged_before_seeds(tmp_path):
    """Three episodes of one seed weigh as much as one of another."""
    rows = [(0, 0, "clean", 3), (0, 0, "clean", 6), (0, 0, "clean", 9), (0, 1, "clean", 100)]
    (point,) = plot(PlotConfig([curve(tmp_path / "tia" / "dmc" / "walker-walk.csv", rows)], out=str(tmp_path / "x")))
    assert point == Point("dmc/walker-walk", "tia", "clean", 0, 2, 53.0, 6.0, 100.0)
    assert "dmc/walker-walk,tia,clean,0,2,53.0,6.0,100.0" in (tmp_path / "x.csv").read_text().splitlines()
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_unseen_backgrounds_where_there_are_any_and_none_after_the_last_step(tmp_path):
    rows = [(step, 0, split, value + step) for step in (0, 10, 20) for split, value in (("train", 1), ("test", 2))]
    path = curve(tmp_path / "repo" / "distracted" / "hopper-hop.csv", rows)
    points = plot(PlotConfig([path], steps=10, out=str(tmp_path / "x")))
    assert [(p.split, p.step, p.mean) for p in points] == [("test", 0, 2), ("test", 10, 12)]
    seen = plot(PlotConfig([path], split="train", out=str(tmp_path / "x")))
    assert [(p.split, p.mean) for p in seen] == [("train", 1), ("train", 11), ("train", 21)]


def test_runs_of_one_name_are_one_curve_of_as_many_seeds(tmp_path):
    first, second, again = (
        curve(tmp_path / name / "dmc" / "walker-run.csv", [(0, seed, "clean", x)])
        for name, seed, x in (("a", 0, 1), ("b", 1, 5), ("c", 0, 9))
    )
    together = plot(PlotConfig([f"both={first}", f"both={second}"], out=str(tmp_path / "x")))
    assert [(p.name, p.seeds, p.mean) for p in together] == [("both", 2, 3.0)]
    apart = plot(PlotConfig([first, second], out=str(tmp_path / "x.png")))
    assert [(p.name, p.seeds, p.mean) for p in apart] == [("a", 1, 1.0), ("b", 1, 5.0)]
    assert not (tmp_path / "x.png.png").exists()
    with pytest.raises(UserError, match="'both' on dmc/walker-run with seed 0; name them apart"):
        plot(PlotConfig([f"both={first}", f"both={again}"], out=str(tmp_path / "x")))


def test_what_a_files_name_says_besides_its_task():
    assert divide("distracted/walker-walk") == ("distracted/walker-walk", "")
    assert divide("distracted/walker-walk-fast-price") == ("distracted/walker-walk", " fast-price")
    assert divide("dmc/cartpole-swingup_sparse-x") == ("dmc/cartpole-swingup_sparse", " x")
    assert divide("gym/my_robot-v0") == ("gym/my_robot-v0", "")


def test_many_tasks_are_drawn_in_rows(tmp_path):
    tasks = "walker-run", "walker-walk", "walker-stand", "hopper-hop"
    files = [curve(tmp_path / "repo" / "dmc" / f"{task}.csv", [(0, 0, "clean", 1)]) for task in tasks]
    plot(PlotConfig(files, out=str(tmp_path / "x")))
    height, width = imread(tmp_path / "x.png").shape[:2]
    assert width < 3 * height


def test_a_run_directory_knows_its_agent_and_task(tmp_path):
    run = tmp_path / "run=1"
    run.mkdir()
    preset_config("distracted/cheetah-run", "debug", "dbc").save(run / "config.json")
    assert source(str(run)) == ("dbc", "distracted/cheetah-run", run / "eval.csv")
    assert source(f"slow price={run}") == ("slow price", "distracted/cheetah-run", run / "eval.csv")
    (run / "eval.csv").write_text("")
    assert source(str(run / "eval.csv")) == source(str(run))
    preset_adapt("runs/x", "distracted/cheetah-run", "debug").save(run)
    assert source(str(run))[0] == "dbc calibrated-support"


def test_interval_of_known_values():
    assert interval([7]) == (7.0, 7.0, 7.0)
    assert interval([0, 100]) == (50.0, 0.0, 100.0)  # a quarter of the draws are (0, 0)
    mean, low, high = interval(np.arange(100.0))  # the mean's deviation is 28.9 / 10
    assert mean == 49.5
    assert abs(mean - low - 1.96 * 2.887) < 0.2
    assert abs(high - mean - 1.96 * 2.887) < 0.2


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_interval_holds_the_mean_and_moves_with_the_values(values):
    mean, low, high = interval(values)
    assert min(values) <= low <= mean <= high <= max(values)
    assert interval([v + 10 for v in values]) == pytest.approx((mean + 10, low + 10, high + 10), abs=0.11)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "neither a run directory nor"),
        ("step,seed,split,return\n0,0,test,2\n", "does not hold the columns"),
        ("", "no evaluation to draw"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, rows, said):
    path = tmp_path / "repo" / "dmc" / "x.csv"
    if rows is not None:
        path.parent.mkdir(parents=True)
        path.write_text(rows)
    assert main(["plot", str(path), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error:")
    assert said in line
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("out", ["/proc/x", "/proc/x/y"])
def test_a_folder_that_cannot_be_written_to_is_told_in_one_line(tmp_path, capsys, out):
    path = curve(tmp_path / "repo" / "dmc" / "walker-run.csv", [(0, 0, "clean", 1)])
    assert main(["plot", path, "--out", out]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: cannot write to /proc") and "--out" in line
