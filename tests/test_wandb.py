"""Weights & Biases hears what TensorBoard does, from a stand-in that keeps what it hears."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from undistracted.adapt import adapt
from undistracted.adapt.config import preset_adapt
from undistracted.errors import UserError
from undistracted.evaluation import Result
from undistracted.logger import RunLog
from undistracted.presets import complete, preset_config
from undistracted.wandb_log import WandbLog


@pytest.fixture
def wandb(monkeypatch):
    """Instead of the package, whether it is installed or not."""
    module, heard = ModuleType("wandb"), []
    module.heard, module.Error, module.Settings = heard, type("Error", (Exception,), {}), SimpleNamespace
    module.__spec__ = ModuleSpec("wandb", None)

    def init(**settings):
        heard.append(settings)
        return SimpleNamespace(
            define_metric=lambda *names, **more: heard.append((names, more)),
            log=heard.append,
            finish=lambda: heard.append("finished"),
        )

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_scalars_are_sent_by_their_own_steps(wandb, tmp_path):
    config = complete(preset_config("dmc/walker-walk", "debug", wandb="walkers", run=str(tmp_path / "run")))
    log = RunLog(tmp_path / "run", pytest.fail, wandb=WandbLog(config))
    log.metrics(50, 1, {"kl": 5.0})
    log.evaluation([Result(0, 1, "clean", 0, 10.0, 500, None)])
    log.close()
    begun, count, *rest = wandb.heard
    assert (begun["project"], begun["name"], begun["config"]["belief"]) == ("walkers", "run", config.belief)
    assert count == (("*",), {"step_metric": "step"})
    assert rest == [{"step": 50, "seed1/kl": 5.0}, {"step": 0, "seed1/eval/clean": 10.0}, "finished"]


def test_what_it_refuses_is_told(wandb, monkeypatch, tmp_path):
    def refuse(**_):
        raise wandb.Error("no API key.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match="W&B: no API key; or set WANDB_MODE=offline"):
        WandbLog(preset_config("dmc/walker-walk", "debug", wandb="walkers", run=str(tmp_path)))


def test_an_adaptation_is_sent_only_if_asked_for(wandb, tmp_path):
    (tmp_path / "checkpoints" / "000000040").mkdir(parents=True)
    (tmp_path / "checkpoints" / "000000040" / "counters.json").write_text("{}")
    complete(preset_config("dmc/walker-walk", "debug", wandb="walkers")).save(tmp_path / "config.json")
    for asked in (None, "looks"):
        assert adapt.prepare(preset_adapt(str(tmp_path), "distracted/walker-walk", wandb=asked))[1].wandb == asked


def test_a_missing_package_is_told_before_a_run_begins(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = preset_config("dmc/walker-walk", "debug", wandb="walkers", run=str(tmp_path))
    for begin in (complete, WandbLog):
        with pytest.raises(UserError, match="--wandb needs the package wandb; install it with scripts/setup.sh wandb"):
            begin(config)
