"""From environments to replay: every row is what happened, in the order in which it happened."""

import multiprocessing
from multiprocessing.shared_memory import SharedMemory

import jax
import numpy as np
import pytest
from toy import COUNTING, STEADY, Broken, Noted, Steady, episodes_of, follow

from undistracted import collector, workers
from undistracted.errors import UserError
from undistracted.learner import Learner
from undistracted.presets import preset_config
from undistracted.rollout import Environments
from undistracted.rundir import prepare
from undistracted.training import Trainer
from undistracted.workers import DeadEnvironment

both_ways = pytest.mark.parametrize("processes", [False, True])


def collect(path, task=COUNTING, **overrides):
    """A trainer after its run, which acts and, where it is not told to, does not learn."""
    settings = dict(run=str(path), updates_per_step=0.0, steps=120, checkpoint_every=50)
    trainer = Trainer(prepare(preset_config(task, "debug", **settings | overrides)))
    try:
        trainer.run()
    finally:
        trainer.close()
    return trainer


def columns(trainer):
    """The replay's rows of each environment, by seed and number."""
    rows, written = jax.device_get(trainer.learner.replay.rows), int(trainer.learner.replay.written[0])
    seeds, _, envs = rows.reward.shape
    return [[jax.tree.map(lambda x, s=s, e=e: x[s, :written, e], rows) for e in range(envs)] for s in range(seeds)]


@pytest.mark.parametrize(
    "processes, learning",
    [(False, {}), (True, dict(updates_per_step=1.0)), (True, dict(updates_per_step=1.0, sync=True))],
)
def test_replay_holds_what_happened(tmp_path, processes, learning):
    """Whether or not it is learned from meanwhile."""
    trainer = collect(tmp_path, envs=3, processes=processes, **learning)
    assert (trainer.learner.updates >= 110) == bool(learning)
    facts = [follow(column) for column in columns(trainer)[0]]
    seeds = [list(dict.fromkeys(fact.seed for fact in column)) for column in facts]
    assert [len(column) for column in seeds] == [4, 4, 4], "prefill, training, and two checkpoints"
    assert len(np.unique(seeds)) == 12
    prefill = [[fact for fact in column if fact.seed == own[0]] for column, own in zip(facts, seeds, strict=True)]
    steps = sum(fact.t > 0 for column in facts for fact in column)
    prefill_steps = sum(fact.t > 0 for column in prefill for fact in column)
    assert 120 <= trainer.step <= 122 and 100 <= prefill_steps <= 102
    assert trainer.step == steps - prefill_steps, "first rows are no steps"
    returns = [episode[0] for column in prefill for episode in episodes_of(column)]
    np.testing.assert_allclose(sorted(trainer.collector.random_returns), sorted(returns))
    actions = np.array([fact.action for column in facts for fact in column if fact.t > 0])
    assert np.abs(actions).max() <= 1 and len(np.unique(actions, axis=0)) == len(actions)


@both_ways
def test_episodes(tmp_path, processes):
    count, config = 3, preset_config(COUNTING, "debug")
    notes = [tmp_path / str(i) for i in range(count)]
    envs = Environments([config.env("train") | {"note": note} for note in notes], processes, Noted)
    rng, stacked, episodes = np.random.default_rng(0), [], []
    try:
        for seeds in ([5, 6, 7], [2**32 - 1, 20, 22]):  # the second reset cuts episodes short: they do not count
            rows, ended = [envs.reset(seeds)], []
            for _ in range(41):
                envs.send(rng.uniform(-1, 1, (count, 6)))
                row, done = envs.receive()
                rows.append(row)
                ended += done
            stacked.append(jax.tree.map(lambda *x: np.stack(x), *rows))
            episodes.append(ended)
    finally:
        envs.close()
    for rows, ended in zip(stacked, episodes, strict=True):
        for env in range(count):
            expected = episodes_of(follow(jax.tree.map(lambda x, env=env: x[:, env], rows)))
            own = [(e.reward, e.length, e.success) for e in ended if e.env == env]
            assert {success for *_, success in own} == {0.0, 1.0, None}
            assert [e[1:] for e in own] == [e[1:] for e in expected]
            np.testing.assert_allclose([e[0] for e in own], [e[0] for e in expected])
    assert all(note.exists() for note in notes), "every environment is closed"


def test_each_seeds_environments_have_its_number(monkeypatch):
    """It decides the order of the clips where these are one loop, as in the released code."""
    monkeypatch.setattr(collector, "Environments", lambda settings, processes: settings)
    settings = collector.environments(preset_config(STEADY, "debug", seed=5, seeds=2, envs=3))
    assert [(one["seed"], one["split"]) for one in settings] == [(5, "train")] * 3 + [(6, "train")] * 3


def test_steps_are_a_seeds_share(tmp_path):
    trainer = collect(tmp_path, seeds=2, checkpoint_every=1000)
    facts = [follow(column) for seed in columns(trainer) for column in seed]
    steps = sum(fact.t > 0 and fact.seed != column[0].seed for column in facts for fact in column)
    assert trainer.step == steps // 2


def test_a_seed_among_others_does_what_it_does_alone(tmp_path, monkeypatch):
    """A whole run, from its environments to its parameters, with --sync in float32. Both are of one device, so that
    only the mapping over seeds rounds otherwise."""
    device = jax.devices()[:1]
    monkeypatch.setattr(Trainer, "make_learner", lambda self, size: Learner(self.config, size, devices=device))
    settings = dict(sync=True, updates_per_step=0.2, precision="float32")
    together = collect(tmp_path / "four", STEADY, seeds=4, **settings)
    alone = collect(tmp_path / "one", STEADY, seed=2, **settings)
    assert together.step == alone.step and together.learner.updates == alone.learner.updates == 24
    for many, single in zip(columns(together)[2], columns(alone)[0], strict=True):
        facts, expected = follow(many, Steady), follow(single, Steady)
        assert [fact[:3] for fact in facts] == [fact[:3] for fact in expected]
        np.testing.assert_allclose(many.action, single.action, atol=1e-5)
    other = follow(columns(together)[0][0], Steady)
    assert {fact.seed for fact in other}.isdisjoint(fact.seed for fact in facts)
    parameters = [jax.tree.leaves(trainer.learner.state.policy) for trainer in (together, alone)]
    for many, single in zip(*parameters, strict=True):
        apart, from_another = (np.linalg.norm(many[seed] - single[0]) for seed in (2, 1))
        assert apart <= 1e-3 * from_another


def test_sync_gives_the_same_bits(tmp_path):
    settings = dict(sync=True, updates_per_step=0.2, envs=2)
    once, again = (collect(tmp_path / name, STEADY, **settings).learner for name in ("once", "again"))
    assert once.updates >= 20
    for x, y in zip(*(jax.tree.leaves((learner.state, learner.replay)) for learner in (once, again)), strict=True):
        np.testing.assert_array_equal(x, y)


@both_ways
def test_an_environments_exception_is_raised_here(processes):
    with pytest.raises(UserError, match="no such video"):
        Environments([{}, {"broken": True}], processes, Broken)
    envs = Environments([{}, {}], processes, Broken)
    try:
        envs.reset([0, 1])
        with pytest.raises(ConnectionResetError, match="the robot hung up") as raised:
            for _ in range(3):
                envs.send(np.zeros((2, 6)))
                envs.receive()
    finally:
        envs.close()
    assert not processes or "raise ConnectionResetError" in raised.value.__notes__[0]


def test_a_long_exception_is_heard_too():
    """Longer than a pipe holds."""
    words = "x" * 1_000_000
    envs = Environments([{"words": words}], True, Broken)
    try:
        envs.reset([0])
        with pytest.raises(ConnectionResetError, match=words):
            for _ in range(3):
                envs.send(np.zeros((1, 6)))
                envs.receive()
    finally:
        envs.close()


def test_a_dead_process_is_missed_and_one_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.5)
    envs = Environments([{"takes": 60}, {}], True, Broken)
    envs.reset([0, 1])
    memory = envs.workers.rows.memory.name
    envs.workers.processes[1].kill()
    envs.send(np.zeros((2, 6)))
    with pytest.raises(DeadEnvironment, match="--resume"):
        envs.receive()
    envs.close()
    assert not any(process.is_alive() for process in envs.workers.processes)
    with pytest.raises(FileNotFoundError):
        SharedMemory(memory)


def test_an_exception_is_not_taken_for_a_death_while_others_take_their_time(monkeypatch):
    monkeypatch.setattr(workers, "LOOK", 0.1)
    envs = Environments([{"takes": 2}, {}], True, Broken)
    try:
        envs.reset([0, 1])
        for env, steps in enumerate((0, 2)):  # the second is at its last step when the first is at its first
            envs.workers.rows.action[:] = 0
            for _ in range(steps):
                envs.workers.rows.order[env] = workers.STEP
                envs.workers.go[env].release()
                assert envs.workers.done.acquire(timeout=30)
        envs.send(np.zeros((2, 6)))
        with pytest.raises(ConnectionResetError, match="the robot hung up"):
            envs.receive()
    finally:
        envs.close()


def test_those_that_were_made_end_with_one_that_was_not():
    """Else they would wait for ever, and this process for them when it ends."""
    before = set(multiprocessing.active_children())
    with pytest.raises(UserError, match="no such video"):
        Environments([{}, {"broken": True}, {}], True, Broken)
    assert set(multiprocessing.active_children()) <= before


def test_actions_that_are_no_numbers_are_told():
    envs = Environments([dict(task=STEADY)] * 2, processes=False)
    envs.reset([0, 1])
    action = np.zeros((2, envs.action_size), np.float32)
    envs.send(action)
    envs.receive()
    action[1] = np.nan
    with pytest.raises(UserError, match="not finite"):
        envs.send(action)
    envs.close()
