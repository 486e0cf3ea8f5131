"""Gymnasium's environments through real sandboxes, beside the same ones in this process."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import paddock
import paddock.gym

MUJOCO = "HalfCheetah-v5"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its log where the process stands."""
    monkeypatch.chdir(tmp_path)


def equal(a: Any, b: Any) -> bool:
    if isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in b)
    if isinstance(b, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


@pytest.mark.parametrize("name", ["CartPole-v1", MUJOCO])
def test_check_env_passes(name: str, simulator: Callable[..., paddock.gym.Simulator]) -> None:
    with paddock.gym.make(simulator(name)) as env, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Taxi-v4", "Blackjack-v1", "MountainCarContinuous-v0", MUJOCO]
)
def test_a_seeded_trajectory_is_the_same_as_in_this_process(
    name: str, simulator: Callable[..., paddock.gym.Simulator]
) -> None:
    plain = gymnasium.make(name)
    plain.action_space.seed(3)
    with paddock.gym.make(simulator(name)) as env:
        assert env.observation_space == plain.observation_space
        assert env.action_space == plain.action_space
        total = 0.0
        for seed in (7, None):  # the second goes on with the first's generator
            assert equal(env.reset(seed=seed), plain.reset(seed=seed))
            for _ in range(100):
                action = plain.action_space.sample()
                got, want = env.step(action), plain.step(action)
                assert equal(got, want)
                total += float(want[1])
                if want[2] or want[3]:
                    break
    assert env.ended is not None
    assert env.ended.reward == pytest.approx(total)


def test_a_malformed_action_is_refused_and_nothing_is_lost(
    simulator: Callable[..., paddock.gym.Simulator],
) -> None:
    plain = gymnasium.make(MUJOCO)
    with paddock.gym.make(simulator(MUJOCO)) as env:
        env.reset(seed=1)
        plain.reset(seed=1)
        for bad in (np.zeros(5), "x", None, np.full(6, math.nan), {"a": 1}, [0.0] * 7, object()):
            with pytest.raises(paddock.gym.BadAction):
                env.step(bad)
        action = plain.action_space.sample()
        assert equal(env.step(action), plain.step(action))


def test_every_rollout_may_have_a_sandbox_of_its_own(
    client: paddock.Client, simulator: Callable[..., paddock.gym.Simulator], fresh_name: Callable[[], str]
) -> None:
    name = fresh_name()
    plain = gymnasium.make("CartPole-v1")
    with paddock.gym.make(simulator("CartPole-v1"), id=name, fresh=True) as env:
        for seed in (1, 2):
            assert equal(env.reset(seed=seed), plain.reset(seed=seed))
            assert equal(env.step(1), plain.step(1))
    first, second = (client.episode(i).info for i in (name, f"{name}/2"))
    assert [e.attempts[0].end.status for e in (first, second) if e.attempts[0].end] == ["ok", "ok"]
    assert [first.reward, second.reward] == [1.0, 1.0]


@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode))
def test_vectors_are_stepped_as_gymnasium_does(
    mode: gymnasium.vector.AutoresetMode, simulator: Callable[..., paddock.gym.Simulator]
) -> None:
    n = 3
    plain = gymnasium.make_vec(
        "CartPole-v1", n, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
    )
    env = paddock.gym.make_vec(simulator("CartPole-v1", ready=n), num_envs=n, autoreset_mode=mode)
    try:
        assert equal(env.reset(seed=5), plain.reset(seed=5))
        plain.action_space.seed(1)
        for _ in range(40):
            actions = plain.action_space.sample()
            got, want = env.step(actions), plain.step(actions)
            assert equal(got[:4], want[:4])
            assert same_infos(got[4], want[4])
            over = want[2] | want[3]
            if mode is gymnasium.vector.AutoresetMode.DISABLED and over.any():
                got_reset = env.reset(options={"reset_mask": over.copy()})
                assert equal(got_reset[0], plain.reset(options={"reset_mask": over.copy()})[0])
        with pytest.raises(paddock.gym.BadAction):
            env.step(np.array([0, 1, 2]))
    finally:
        env.close()
    assert all(e is not None and e.reward is not None and e.reward > 0 for e in env.ended)


def same_infos(a: dict[str, Any], b: dict[str, Any]) -> bool:
    if "final_obs" not in b:
        return equal(a, b)
    same = [equal(x, y) for x, y in zip(a["final_obs"], b["final_obs"], strict=True) if y is not None]
    return all(same) and equal(a["_final_obs"], b["_final_obs"])


# A simulator of the world's own: its actions make it fail.
SCRIPT = """
import json, sys, time
def say(**m): print(json.dumps(m), flush=True)
space = {"type": "integer", "minimum": 0, "maximum": 9, "space": {"type": "Discrete", "n": 10, "start": 0}}
say(protocol="paddock-simulator/1", observation_space=space, action_space=space)
for line in sys.stdin:
    m = json.loads(line)
    a = m.get("action")
    if a == 1: sys.exit(3)
    if a == 2: print("hello", flush=True)
    elif a == 3: time.sleep(1000)
    else: say(observation=a or 0, reward=float("action" in m), terminated=False, truncated=False, info={})
"""


def test_a_fault_of_the_simulator_ends_the_rollout_with_the_crash_reward(
    client: paddock.Client, gym_world: str
) -> None:
    sim = paddock.gym.simulator(
        command=["python3", "-c", SCRIPT],
        world=gym_world,
        socket=client.socket,
        crash_reward=-2.0,
        step_s=3,
        ready=0,
    )
    env = paddock.gym.make(sim)
    env.reset()
    env.step(5)
    obs, reward, terminated, _, info = env.step(1)
    assert (obs, reward, terminated) == (5, -2.0, True)
    assert info["fault"].kind == "program_ended"
    assert info["ended"].end.flags == ("world_fault",)
    assert info["ended"].reward == -1.0
    with pytest.raises(paddock.EpisodeEnded):
        env.step(0)
    env.close()
    vec = paddock.gym.make_vec(sim, num_envs=3)
    vec.reset()
    step = vec.step(np.array([0, 2, 3]))
    assert np.array_equal(step[1], [1.0, -2.0, -2.0])
    assert np.array_equal(step[2], [False, True, True])
    infos = step[4]
    assert [infos["fault"][i].kind for i in (1, 2)] == ["bad_reply", "timeout"]
    step = vec.step(np.array([7, 0, 0]))  # the two begin anew
    assert step[0].tolist() == [7, 0, 0]
    assert np.array_equal(step[1], [1.0, 0.0, 0.0])
    assert not np.any(step[2])
    vec.close()


def test_steps_are_calls_on_record(
    client: paddock.Client, simulator: Callable[..., paddock.gym.Simulator], fresh_name: Callable[[], str]
) -> None:
    name = fresh_name()
    with paddock.gym.make(simulator("CartPole-v1"), id=name) as env:
        obs = [env.reset(seed=3)[0]]
        for action in (0, 1, 1):
            step = env.step(action)
            obs.append(step[0])
    arrays = paddock.gym.trajectory(client.socket, name)
    assert np.array_equal(arrays["observations"], np.stack(obs))
    assert arrays["actions"].tolist() == [0, 1, 1]
    assert arrays["rewards"].tolist() == [1.0, 1.0, 1.0]
    assert arrays["starts"].tolist() == [0]


def test_spaces_survive_the_way() -> None:
    from paddock import _envs

    box = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    discrete = gymnasium.spaces.Discrete(3, start=2)
    space = gymnasium.spaces.Dict({"a": box, "b": gymnasium.spaces.Tuple([discrete])})
    schema = {
        "properties": {
            "a": {"space": {"type": "Box", "dtype": "|u1", "shape": [8, 8, 3], "low": 0, "high": 255}},
            "b": {
                "prefixItems": [{"space": {"type": "Discrete", "n": 3, "start": 2}}],
                "space": {"type": "Tuple"},
            },
        },
        "space": {"type": "Dict", "order": ["a", "b"]},
    }
    assert _envs.space_of(schema) == space
    picture = box.sample()
    wire = {"a": {"$array": "|u1", "shape": [8, 8, 3], "frame": 0}, "b": [2]}
    got = _envs.decoder(space)(wire, [picture.tobytes()])
    assert equal(got, {"a": picture, "b": (discrete.start,)})
    assert json.loads(_envs.encode({"x": np.float32(1.5), "y": [np.int64(2)], "z": math.inf})) == {
        "x": 1.5,
        "y": [2],
        "z": {"$float": "inf"},
    }
