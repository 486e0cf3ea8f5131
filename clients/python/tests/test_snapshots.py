"""Snapshots of environments: what is put back goes on bit for bit as what was taken."""

from __future__ import annotations

import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import paddock
import paddock.gym

REPO = Path(__file__).resolve().parents[3]
MUJOCO = "HalfCheetah-v5"

Open = Callable[..., paddock.gym.Simulator]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its log where the process stands."""
    monkeypatch.chdir(tmp_path)


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, in type and value."""
    if isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in b)
    if isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


# What goes on in a world, tried here in one process.


@pytest.fixture(scope="module")
def state() -> Any:
    return runpy.run_path(str(REPO / "runner" / "simulator" / "state.py"))


@pytest.mark.parametrize(
    "name",
    [
        *("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "Taxi-v4", "Blackjack-v1"),
        *("FrozenLake-v1", "HalfCheetah-v5", "Humanoid-v5", "Ant-v5", "Pusher-v5", "InvertedPendulum-v5"),
    ],
)
def test_a_state_is_put_back_bit_for_bit_over_many_rollouts(name: str, state: Any) -> None:
    env, other = (gymnasium.make(name, disable_env_checker=True) for _ in range(2))
    env.reset(seed=1)
    other.reset(seed=2)
    env.action_space.seed(3)
    actions = [env.action_space.sample() for _ in range(150)]
    state["walk"](env, actions[:37], pickle.dumps)
    taken = state["take"](env, "attributes", 1 << 20, "beside")
    want = state["walk"](env, actions[37:], pickle.dumps)
    for which in (env, other, env):
        assert state["put"](which, taken) == "beside"
        assert state["walk"](which, actions[37:], pickle.dumps) == want


def test_bytes_that_are_no_state_are_refused_and_nothing_is_done(state: Any) -> None:
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    env.reset(seed=1)
    taken = state["take"](env, "attributes", 1 << 20)
    half = gymnasium.make(MUJOCO, disable_env_checker=True)
    half.reset(seed=1)
    hopper = gymnasium.make("Hopper-v5", disable_env_checker=True)
    hopper.reset(seed=1)
    for bad in (
        b"",
        b"hello",
        taken[: len(taken) // 2],
        pickle.dumps({"form": "x"}),
        pickle.dumps(7),
        state["take"](half, "attributes", 1 << 20),
    ):
        with pytest.raises(state["BadSnapshot"]):
            state["put"](env, bad)
    with pytest.raises(state["BadSnapshot"]):
        state["put"](hopper, state["take"](half, "attributes", 1 << 20))
    assert env.step(1)[0].tobytes() == after(env, state, taken)
    with pytest.raises(state["TooLarge"]):
        state["take"](env, "attributes", 1000)


def after(env: Any, state: Any, taken: bytes) -> bytes:
    state["put"](env, taken)
    return bytes(env.step(1)[0].tobytes())


def test_a_picture_does_not_stand_in_the_way(state: Any) -> None:
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    env.reset(seed=1)
    window = type("Surface", (), {"__module__": "pygame.surface"})()
    env.unwrapped.screen = window  # type: ignore[attr-defined]
    taken = state["take"](env, "attributes", 1 << 20)
    want = state["walk"](env, [1] * 8, pickle.dumps)
    state["put"](env, taken)
    assert env.unwrapped.screen is window  # type: ignore[attr-defined]
    assert state["walk"](env, [1] * 8, pickle.dumps) == want


# Through real sandboxes.


@pytest.mark.parametrize("name", ["CartPole-v1", "Blackjack-v1", MUJOCO])
def test_a_restored_environment_goes_on_as_the_plain_one(
    name: str, simulator: Open, fresh_name: Callable[[], str]
) -> None:
    plain = gymnasium.make(name)
    plain.reset(seed=7)
    plain.action_space.seed(3)
    actions = [plain.action_space.sample() for _ in range(60)]
    sim = simulator(name)
    with paddock.gym.make(sim, id=fresh_name()) as env, paddock.gym.make(sim, id=fresh_name()) as other:
        env.reset(seed=7)
        rewards = 0.0
        for action in actions[:5]:
            got = env.step(action)
            last: Any = plain.step(action)
            assert same(got, last)
            rewards += float(got[1])
            if got[2] or got[3]:  # the generator goes on, too
                last = plain.reset()
                assert same(env.reset(), last)
        taken = env.snapshot()
        want = walk(plain, actions[5:])
        assert same(walk(env, actions[5:]), want)
        assert taken.reward == pytest.approx(rewards)
        for which in (env, other, env):  # in another episode, too, which was never reset
            found = which.restore(taken)
            assert same(found[0], last[0])
            assert same(found[1], last[-1])
            assert same(walk(which, actions[5:]), want)
    total = rewards + sum(float(step[1]) for step in want if len(step) == 5)
    assert env.ended is not None
    assert other.ended is not None
    assert env.ended.reward == other.ended.reward == pytest.approx(total)


def walk(env: Any, actions: list[Any]) -> list[Any]:
    seen: list[Any] = []
    for action in actions:
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            seen.append(env.reset())
    return seen


def test_the_time_limit_goes_back_with_the_state(simulator: Open) -> None:
    with paddock.gym.make(simulator("MountainCar-v0", kwargs={"max_episode_steps": 5})) as env:
        env.reset(seed=1)
        for _ in range(3):
            assert not env.step(1)[3]
        taken = env.snapshot()
        for _ in range(2):
            assert [env.step(1)[3] for _ in range(2)] == [False, True]
            over = env.snapshot()
            assert over.truncated
            env.restore(taken)
        env.restore(over)
        with pytest.raises(paddock.gym.BadAction):  # needs a reset
            env.step(1)
        env.reset()
        assert [env.step(1)[3] for _ in range(5)] == [False] * 4 + [True]


def test_vectors_branch_from_one_state(simulator: Open, client: paddock.Client) -> None:
    n = 3
    sim = simulator("CartPole-v1", ready=n)
    env = paddock.gym.make_vec(sim, num_envs=n)
    try:
        env.reset(seed=5)
        for _ in range(3):
            env.step(np.array([0, 1, 0]))
        taken = env.snapshot([1])
        assert list(taken) == [1]
        before = env.step(np.array([1, 1, 1]))
        obs, _ = env.restore({0: taken[1], 2: taken[1]})
        assert same(obs[1], before[0][1])
        assert same(obs[0], obs[2])
        step = env.step(np.array([1, 0, 1]))
        assert same(step[0][0], before[0][1])  # one went where another had gone
        assert same(step[0][0], step[0][2])
        everything = env.snapshot()
        for _ in range(40):  # some end, and begin again
            last = env.step(np.array([1, 1, 1]))
        env.restore(everything)
        for _ in range(40):
            again = env.step(np.array([1, 1, 1]))
        assert same(again[:4], last[:4])
        # The end of a rollout goes back with its state: the next step resets.
        while not (ended := env.step(np.array([1, 1, 1])))[2].all():
            over = ended[2]
            if over.any():
                break
        i = int(np.flatnonzero(ended[2])[0])
        state = env.snapshot([i])
        assert state[i].terminated
        env.step(np.array([0, 0, 0]))
        env.restore(state)
        assert env.step(np.array([0, 0, 0]))[1][i] == 0.0
        taken[1].drop()
        with pytest.raises(paddock.NotFound):
            env.restore(taken)
        with pytest.raises(paddock.NotFound):
            taken[1].drop()
    finally:
        env.close()


def test_restores_are_on_record(
    client: paddock.Client, simulator: Open, fresh_name: Callable[[], str]
) -> None:
    name = fresh_name()
    with paddock.gym.make(simulator("CartPole-v1"), id=name) as env:
        obs = [env.reset(seed=3)[0], env.step(0)[0]]
        taken = env.snapshot()
        obs.append(env.step(1)[0])
        obs.append(env.restore(taken)[0])
        obs.append(env.step(0)[0])
    arrays = paddock.gym.trajectory(client.socket, name)
    assert np.array_equal(arrays["observations"], np.stack(obs))
    assert arrays["actions"].tolist() == [0, 1, 0]
    assert arrays["starts"].tolist() == [0, 2]
    assert env.ended is not None
    assert env.ended.reward == 2.0


def test_every_restore_may_have_a_sandbox_of_its_own(
    client: paddock.Client, simulator: Open, fresh_name: Callable[[], str]
) -> None:
    name = fresh_name()
    with paddock.gym.make(simulator("CartPole-v1"), id=name, fresh=True) as env:
        env.reset(seed=3)
        taken = env.snapshot()
        want = env.step(0)
        env.restore(taken)
        assert same(env.step(0), want)
    assert client.episode(f"{name}/2").info.reward == 1.0


# Environments of a world's own.
OWN = """
import gymnasium, numpy as np

HIDDEN = {}

class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begin()
        return self.see(), {}
    def begin(self): self.x = float(self.np_random.integers(100))
    def see(self): return np.array([self.x])
    def step(self, action):
        self.x += 1 + action
        return self.see(), 1.0, False, False, {}

class Held(Base):  # what it holds cannot be pickled
    def begin(self): self.x, self.steps = 0.0, (i for i in range(10 ** 9))
    def see(self): return np.array([float(next(self.steps))])

class Hidden(Base):  # its state is where nobody looks
    def begin(self): self.x, HIDDEN[id(self)] = 0.0, 0
    def see(self):
        HIDDEN[id(self)] += 1
        return np.array([float(HIDDEN[id(self)])])

class Offering(Hidden):  # and so is this one's, but it offers it
    def get_state(self): return HIDDEN[id(self)]
    def set_state(self, state): HIDDEN[id(self)] = state

class Careless(Base):  # offers less than all: its attributes are better
    def get_state(self): return 1
    def set_state(self, state): pass

class Large(Base):
    def begin(self): self.x, self.map = 0.0, np.zeros(1 << 20)

class Growing(Base):  # can be taken, but not later
    def step(self, action):
        self.x += 1
        self.seen = (i for i in range(3)) if self.x > 150 else None
        return self.see(), 1.0, False, False, {}

for name in ("Held", "Hidden", "Offering", "Careless", "Large", "Growing"):
    gymnasium.register(name + "-v0", entry_point="own:" + name)
"""


@pytest.fixture(scope="module")
def own(client: paddock.Client, gym_world: str, tmp_path_factory: pytest.TempPathFactory) -> Open:
    files = tmp_path_factory.mktemp("own")
    (files / "own.py").write_text(OWN)
    client.worlds.build(dir=str(files), into="/opt/own", base=gym_world, name="own")

    def opened(env: str, **spec: Any) -> paddock.gym.Simulator:
        spec = {"ready": 0, "vars": {"PYTHONPATH": "/opt/own:/opt/python"}, **spec}
        return paddock.gym.simulator(f"own:{env}", world="own", socket=client.socket, **spec)

    return opened


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("Held-v0", "snapshot_unsupported", "steps of Held cannot be kept"),
        ("Hidden-v0", "snapshot_unsupported", "it goes on otherwise"),
        ("Large-v0", "snapshot_too_large", "max_snapshot"),
    ],
)
def test_an_environment_that_offers_none_says_so_and_goes_on(
    name: str, kind: str, why: str, own: Open
) -> None:
    with paddock.gym.make(own(name, max_snapshot="64KiB")) as env:
        env.reset(seed=1)
        first = env.step(1)
        for _ in range(2):
            with pytest.raises(paddock.gym.SnapshotRefused, match=why) as refused:
                env.snapshot()
            assert refused.value.kind == kind
        second = env.step(1)
        assert second[0][0] - first[0][0] in (1.0, 2.0)
    assert env.ended is not None
    assert env.ended.reward == 2.0


@pytest.mark.parametrize("name", ["Offering-v0", "Careless-v0", "Growing-v0"])
def test_the_best_way_that_works_is_found_by_trial(name: str, own: Open) -> None:
    with paddock.gym.make(own(name)) as env:
        env.reset(seed=1)
        env.step(1)
        taken = env.snapshot()
        want = walk(env, [1, 0, 1])
        env.restore(taken)
        assert same(walk(env, [1, 0, 1]), want)
        if name == "Growing-v0":
            walk(env, [0] * 200)
            with pytest.raises(paddock.gym.SnapshotRefused, match="seen of Growing"):
                env.snapshot()
            env.restore(taken)
            assert same(walk(env, [1, 0, 1]), want)


def test_a_snapshot_of_another_environment_is_refused(simulator: Open, own: Open) -> None:
    with (
        paddock.gym.make(simulator("CartPole-v1")) as env,
        paddock.gym.make(simulator("CartPole-v1", kwargs={"sutton_barto_reward": True})) as other,
        paddock.gym.make(own("Careless-v0")) as elsewhere,
    ):
        env.reset(seed=1)
        taken = env.snapshot()
        elsewhere.reset()
        for which, differs in ((other, ["/kwargs"]), (elsewhere, ["/env", "/vars", "/world"])):
            with pytest.raises(paddock.PaddockError) as refused:
                which.restore(taken)
            assert refused.value.kind == "spec_conflict"
            assert [d.pointer for d in refused.value.pointers] == differs
        elsewhere.step(1)
