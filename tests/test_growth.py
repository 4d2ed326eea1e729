"""Learners without environments, one after the other, and the settings that costs are measured against."""

import signal
import threading
import time

import pytest
from toy import STEADY

from undistracted import growth
from undistracted.growth import lone_update_times
from undistracted.interrupt import asked_to_stop
from undistracted.presets import complete, preset_config


@pytest.mark.parametrize(("agent", "rows"), [("tdmpc", 1_000), ("dbc", 2 * 4 * 2)])
def test_ring_is_whole_where_every_draw_goes_over_it(monkeypatch, agent, rows):
    """Others draw from a few rows as fast as from many, and are spared the memory."""
    for name in ("fill", "compile_time"):
        monkeypatch.setattr(growth, name, lambda *_: None)
    monkeypatch.setattr(growth, "update_time", lambda learner, updates: learner.replay.rows.reward.size)
    assert lone_update_times({agent: complete(preset_config(STEADY, "debug", agent))}, 1) == {agent: rows}


def test_updates_are_compiled_side_by_side_for_a_gpu_and_timed_one_by_one(monkeypatch):
    """All compilations have begun before the first is done, all are done before the first timing, and the same
    settings under two names are measured once."""
    log, both = [], threading.Barrier(2, timeout=30)
    monkeypatch.setattr(growth, "on_gpu", lambda: True)
    monkeypatch.setattr(growth, "lone_learner", lambda config: log.append(both.wait() >= 0) or config.batch)
    monkeypatch.setattr(growth.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(growth, "update_time", lambda learner, updates: log.append(learner) or float(learner))
    four, eight = (preset_config(STEADY, "debug", batch=n) for n in (4, 8))
    assert lone_update_times({"a": four, "b": eight, "c": four}, 1) == {"a": 4.0, "b": 8.0, "c": 4.0}
    assert log == [True, True, 4, 8]


def test_ctrl_c_does_not_wait_for_compilers(monkeypatch):
    compiled, begun = threading.Event(), threading.Event()

    def long(config):
        begun.set()
        assert compiled.wait(30)

    monkeypatch.setattr(growth, "lone_learner", long)
    (give_up := threading.Timer(10, compiled.set)).start()
    with asked_to_stop() as request, pytest.raises(KeyboardInterrupt):
        threading.Thread(target=lambda: begun.wait(10) and signal.raise_signal(signal.SIGINT)).start()
        lone_update_times({n: preset_config(STEADY, "debug", batch=n) for n in (4, 8)}, 1, request.heed)
    assert begun.is_set() and not compiled.is_set()
    give_up.cancel()
    compiled.set()


def test_no_two_learners_learn_at_once_on_a_cpu(monkeypatch):
    threads = set()
    monkeypatch.setattr(growth, "lone_learner", lambda _: time.sleep(0.05) or threads.add(threading.get_ident()))
    monkeypatch.setattr(growth.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(growth, "update_time", lambda learner, updates: 1.0)
    lone_update_times({n: preset_config(STEADY, "debug", batch=n) for n in (2, 4, 8)}, 1)
    assert len(threads) == 1


def test_growth_is_of_half_the_preset_its_own_and_twice_as_much(monkeypatch):
    monkeypatch.setattr(growth, "lone_update_times", lambda configs, *_: configs)
    monkeypatch.setattr(growth, "environment_rate", lambda envs: envs.count)
    monkeypatch.setattr(growth.os, "cpu_count", lambda: 1)
    *_, result = growth.growth(lambda **changes: complete(preset_config(STEADY, "debug", **changes)), 1)
    for name, values in dict(batch=[2, 4, 8], length=[4, 8, 16], horizon=[2, 4, 8], seeds=[1, 2, 4]).items():
        assert {x: getattr(c, name) for x, c in result["update_ms"][name].items()} == {x: x for x in values}
    assert result["env_steps_per_s"] == {"processes": {1: 1, 2: 2}}
    frames = 64 * 64 * 3 / 1e9
    small, _, whole = (result["memory_gb"]["replay_size"][rows] for rows in (250, 500, 1_000))
    assert whole - small == pytest.approx(750 * frames, rel=0.01)
