"""Environments of a simulator as Gymnasium's: ``make`` and ``make_vec``.

Each environment is an episode of the daemon: its steps are on record, its sandbox has
limits, and the sum of its rewards is its score. This module needs gymnasium; the world
needs python3 and the environment's packages.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ._envs import (
    BadAction,
    Ended,
    Envs,
    Fault,
    Simulator,
    Snapshot,
    SnapshotRefused,
    anything,
    decoder,
    encoder,
    ended_of,
    fault_of,
    nothing_done,
    recorded,
    refused,
    snapshot_of,
)
from ._errors import BadRequest, EpisodeEnded
from ._http import dumps, socket_path
from ._types import WorldRef, world_ref

__all__ = [
    "BadAction",
    "Ended",
    "Env",
    "Fault",
    "Simulator",
    "Snapshot",
    "SnapshotRefused",
    "VectorEnv",
    "export",
    "make",
    "make_vec",
    "simulator",
    "trajectory",
]


def simulator(
    env: str = "",
    *,
    world: WorldRef,
    command: Sequence[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    socket: str | os.PathLike[str] | None = None,
    **spec: Any,
) -> Simulator:
    """Open a simulator: the Gymnasium environment ``env``, or a ``command`` of the world.

    ``spec`` is the rest of the daemon's SimulatorSpec: policy, limits, requests, budgets,
    step_s, reset_s, max_snapshot, record, allow_nan, crash_reward, ready.
    """
    body: dict[str, Any] = {"world": world_ref(world), **spec}
    if env:
        body["env"] = env
    if command:
        body["command"] = list(command)
    if kwargs:
        body["kwargs"] = dict(kwargs)
    return Simulator(body, socket)


def make(env: str | Simulator, *, run: str = "", id: str = "", fresh: bool = False, **spec: Any) -> Env:
    """An environment. ``env`` is an open simulator, or a name with what ``simulator`` takes.

    ``run`` and ``id`` name its episode. With ``fresh`` every rollout has an episode of its
    own, in a sandbox that nothing has used; the later ones are called ``id/2``, ``id/3``...
    """
    episode = {k: spec.pop(k) for k in list(spec) if k in _EPISODE}
    sim = env if isinstance(env, Simulator) else simulator(env, **spec)
    return Env(sim, run=run, id=id, fresh=fresh, **episode)


def make_vec(
    env: str | Simulator,
    *,
    num_envs: int = 1,
    run: str = "",
    id: str = "",
    fresh: bool = False,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    **spec: Any,
) -> VectorEnv:
    """``num_envs`` environments that are stepped together over one connection.

    The episodes are called ``id/0``, ``id/1``...; a simulator that is opened here keeps
    ``num_envs`` sandboxes ready unless ``ready`` says otherwise.
    """
    episode = {k: spec.pop(k) for k in list(spec) if k in _EPISODE}
    if not isinstance(env, Simulator):
        spec.setdefault("ready", min(num_envs, 64))
        env = simulator(env, **spec)
    mode = AutoresetMode(autoreset_mode)
    return VectorEnv(env, num_envs, run=run, id=id, fresh=fresh, autoreset_mode=mode, **episode)


_EPISODE = frozenset(["group", "task", "weights", "env_seed", "graders", "labels", "retries", "generation"])


class _Naming:
    """The specs of the episodes that one environment has, one after another."""

    def __init__(self, n: int, run: str, id: str, episode: Mapping[str, Any]) -> None:
        self.n, self.id, self.count = n, id, 0
        self.spec = {**({"run": run} if run else {}), **episode}

    def make(self) -> str:
        self.count += 1
        spec = dict(self.spec)
        if self.id:
            spec["id"] = self.id if self.count == 1 else f"{self.id}/{self.count}"
        return dumps({"env": self.n, "op": "make", "make": spec})

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> str:
        line: dict[str, Any] = {"env": self.n, "op": "reset"}
        if seed is not None:
            line["seed"] = int(seed)
        if options:
            line["options"] = dict(options)
        return dumps(line)

    def snapshot(self) -> str:
        return f'{{"env":{self.n},"op":"snapshot"}}'

    def restore(self, snapshot: Snapshot) -> str:
        return dumps({"env": self.n, "op": "restore", "snapshot": snapshot.id})

    def close(self) -> str:
        return f'{{"env":{self.n},"op":"close"}}'


class Env(gymnasium.Env[Any, Any]):
    """One environment of a simulator.

    A malformed action raises BadAction and leaves everything as it was. A fault of the
    simulator that is the agent's to avoid terminates the rollout with ``crash_reward`` and
    the outcome in ``info["ended"]``; one that is not raises EpisodeEnded, as does a step of
    an environment whose episode has ended.
    """

    def __init__(
        self, simulator: Simulator, *, run: str = "", id: str = "", fresh: bool = False, **episode: Any
    ) -> None:
        self.simulator = simulator
        self.observation_space = simulator.observation_space
        self.action_space = simulator.action_space
        self.metadata = simulator.metadata
        self.render_mode = (simulator.spec.get("kwargs") or {}).get("render_mode")
        self.fresh = fresh
        # How the episode ended, once it has; episode is its run, id, attempt and env_seed.
        self.ended: Ended | None = None
        self.episode: dict[str, Any] = {}
        self._decode, self._encode = decoder(self.observation_space), encoder(self.action_space)
        self._name = _Naming(0, run, id, episode)
        self._begun = False
        self._last: Any = None
        self._envs: Envs | None = Envs(simulator)
        try:
            self._make()
        except BaseException:
            self._envs.close()
            raise

    def _make(self) -> None:
        self.episode = self._ask(self._name.make())[0]["episode"]
        self.ended, self._begun = None, False

    def _ask(self, line: str) -> tuple[dict[str, Any], list[bytes]]:
        if self._envs is None:
            raise gymnasium.error.ClosedEnvironmentError("the environment is closed")
        return self._envs.ask(line)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.fresh and self._begun:
            self._ask(self._name.close())
            self._make()
        reply, frames = self._ask(self._name.reset(seed, options))
        self._refuse(reply)
        self._begun = True
        self._last = self._decode(reply["observation"], frames)
        return self._last, anything(reply.get("info") or {}, frames)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reply, frames = self._ask(f'{{"env":0,"op":"step","action":{self._encode(action)}}}')
        if "observation" not in reply:
            return self._without(reply)
        self._last = self._decode(reply["observation"], frames)
        info = anything(reply.get("info") or {}, frames)
        return self._last, float(reply["reward"]), reply["terminated"], reply["truncated"], info

    def render(self) -> Any:
        """The picture, of a simulator with the argument render_mode."""
        reply, frames = self._ask('{"env":0,"op":"render"}')
        self._refuse(reply)
        return anything(reply.get("observation"), frames)

    def snapshot(self) -> Snapshot:
        """Take the state, which ``restore`` puts back, here or in another environment.

        An environment that offers none raises SnapshotRefused.
        """
        reply, _ = self._ask(self._name.snapshot())
        self._refuse(reply)
        return snapshot_of(reply["snapshot"], self.simulator.socket)

    def restore(self, snapshot: Snapshot) -> tuple[Any, dict[str, Any]]:
        """Go on from a snapshot of this or another environment of the same world and program.

        The answer is the observation and info at which it was taken. No reset is needed
        before. The episode's reward is that of the way that leads to its end: what was
        stepped from a state that was left by a restore does not count.
        """
        if self.fresh and self._begun:
            self._ask(self._name.close())
            self._make()
        reply, frames = self._ask(self._name.restore(snapshot))
        self._refuse(reply)
        self._begun = True
        self._last = self._decode(reply["observation"], frames)
        return self._last, anything(reply.get("info") or {}, frames)

    def _without(self, reply: Mapping[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = self.ended
        self._refuse(reply, raises=before is not None)
        assert self.ended is not None
        if self.ended.end.cause != "agent":
            self._refuse(reply)
        return deepcopy(self._last), float(reply.get("reward", 0.0)), True, False, _outcome(reply, self.ended)

    def _refuse(self, reply: Mapping[str, Any], raises: bool = True) -> None:
        """Raise what stands in the place of an observation."""
        ended, fault = ended_of(reply), fault_of(reply)
        if ended is None:
            if fault is not None:
                raise nothing_done(fault)
            return
        self.ended = ended
        if raises:
            text = f"{fault.kind}: {fault.detail}" if fault else "the environment's episode has ended"
            raise EpisodeEnded("episode_ended", text, outcome=ended.end)

    def close(self) -> None:
        """End the episode well; ``ended`` then has its reward. Closing again does nothing."""
        envs, self._envs = self._envs, None
        if envs is None:
            return
        try:
            if envs.pid == os.getpid():  # a fork's connection is its parent's
                reply, _ = envs.ask(self._name.close())
                self.ended = ended_of(reply)
        finally:
            envs.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self._envs is not None:
                self._envs.close()


def _outcome(reply: Mapping[str, Any], ended: Ended) -> dict[str, Any]:
    info: dict[str, Any] = {"ended": ended, "reason": ended.end.status}
    fault = fault_of(reply)
    if fault is not None:
        info["fault"] = fault
    return info


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Environments of a simulator that are stepped together.

    One whose simulator fails ends its rollout: terminated with ``crash_reward`` where that
    is the agent's to avoid, else truncated with a reward that is not a number, which must
    not be learned from; ``infos["ended"]`` has the outcome. Its next reset makes a new one.
    """

    def __init__(
        self,
        simulator: Simulator,
        num_envs: int,
        *,
        run: str = "",
        id: str = "",
        fresh: bool = False,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        **episode: Any,
    ) -> None:
        self.simulator = simulator
        self.num_envs = num_envs
        self.single_observation_space = simulator.observation_space
        self.single_action_space = simulator.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {**simulator.metadata, "autoreset_mode": autoreset_mode}
        self.render_mode = None
        self.autoreset_mode = autoreset_mode
        self.fresh = fresh
        # How each environment's last episode ended, once it has.
        self.ended: list[Ended | None] = [None] * num_envs
        self.episodes: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self._decode, self._encode = decoder(self.single_observation_space), encoder(self.single_action_space)
        self._names = [_Naming(i, run, f"{id}/{i}" if id else "", episode) for i in range(num_envs)]
        self._begun, self._dead, self._over = (np.zeros(num_envs, dtype=np.bool_) for _ in range(3))
        self._obs: list[Any] = [None] * num_envs
        self._batch: Any = create_empty_array(self.single_observation_space, num_envs)
        self._envs: Envs | None = Envs(simulator)
        try:
            self._exchange([n.make() for n in self._names])
        except BaseException:
            self._envs.close()
            raise

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments")
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        which = [i for i in range(self.num_envs) if mask is None or mask[i]]
        infos: dict[str, Any] = {}
        self._reset({i: seed[i] for i in which}, options, infos)
        return self._observations(), infos

    def _reset(
        self, seeds: Mapping[int, int | None], options: Mapping[str, Any] | None, infos: dict[str, Any]
    ) -> None:
        """Reset some; whose episode is to be another has it made first."""
        lines = []
        for i, seed in seeds.items():
            if self._dead[i] or (self.fresh and self._begun[i]):
                lines += [self._names[i].close(), self._names[i].make()]
            lines.append(self._names[i].reset(seed, options))
        for reply, frames in self._exchange(lines):
            i = reply["env"]
            if reply["op"] != "reset":
                continue
            if "observation" not in reply:
                fault, ended = fault_of(reply), ended_of(reply)
                raise EpisodeEnded(
                    "episode_ended",
                    f"environment {i}: {fault.kind}: {fault.detail}"
                    if fault
                    else f"environment {i} has ended",
                    outcome=ended.end if ended else None,
                )
            self._obs[i] = self._decode(reply["observation"], frames)
            self._begun[i], self._dead[i], self._over[i] = True, False, False
            self._tell(infos, anything(reply.get("info") or {}, frames), i)

    def step(
        self, actions: Any
    ) -> tuple[
        Any,
        np.ndarray[Any, np.dtype[np.float64]],
        np.ndarray[Any, np.dtype[np.bool_]],
        np.ndarray[Any, np.dtype[np.bool_]],
        dict[str, Any],
    ]:
        self._check(actions)
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated, truncated = (np.zeros(self.num_envs, dtype=np.bool_) for _ in range(2))
        infos: dict[str, Any] = {}
        again = [i for i in range(self.num_envs) if self._over[i]]
        if again and self.autoreset_mode is AutoresetMode.DISABLED:
            raise gymnasium.error.ResetNeeded(f"environments {again} have ended and were not reset")
        lines = [
            f'{{"env":{i},"op":"step","action":{self._encode(action)}}}'
            for i, action in enumerate(iterate(self.action_space, actions))
            if not self._over[i]
        ]
        skipped = set(again)
        bad: BadRequest | None = None
        if again:
            self._reset(dict.fromkeys(again), None, infos)
        for reply, frames in self._exchange(lines):
            i = reply["env"]
            if "observation" in reply:
                self._obs[i] = self._decode(reply["observation"], frames)
                rewards[i], terminated[i], truncated[i] = (
                    reply["reward"],
                    reply["terminated"],
                    reply["truncated"],
                )
                info = anything(reply.get("info") or {}, frames)
            else:
                ended, fault = ended_of(reply), fault_of(reply)
                if ended is None:
                    assert fault is not None
                    bad = nothing_done(replace(fault, detail=f"environment {i}: {fault.detail}"))
                    continue
                self.ended[i], self._dead[i] = ended, True
                mine = ended.end.cause == "agent"
                rewards[i] = float(reply.get("reward", 0.0)) if mine else float("nan")
                terminated[i], truncated[i] = mine, not mine
                info = _outcome(reply, ended)
            if self.autoreset_mode is AutoresetMode.SAME_STEP and (terminated[i] or truncated[i]):
                info = {"final_obs": deepcopy(self._obs[i]), "final_info": info}
            self._tell(infos, info, i)
        if bad is not None:
            raise bad
        over = terminated | truncated
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            if over.any():
                self._reset({int(i): None for i in np.flatnonzero(over)}, None, infos)
        else:
            for i in range(self.num_envs):
                if i not in skipped:
                    self._over[i] = over[i]
        return self._observations(), rewards, terminated, truncated, infos

    def snapshot(self, which: Iterable[int] | None = None) -> dict[int, Snapshot]:
        """Take the states of some environments, or of all, by their numbers."""
        lines = [self._names[i].snapshot() for i in (range(self.num_envs) if which is None else which)]
        taken: dict[int, Snapshot] = {}
        bad: Exception | None = None
        for reply, _ in self._exchange(lines):
            i = reply["env"]
            if "snapshot" in reply:
                taken[i] = snapshot_of(reply["snapshot"], self.simulator.socket)
            else:
                bad = self._lost(i, reply)
        if bad is not None:
            raise bad
        return taken

    def restore(self, snapshots: Mapping[int, Snapshot]) -> tuple[Any, dict[str, Any]]:
        """Have some environments go on from snapshots: ``{3: s}``, or all of them from one
        with ``dict.fromkeys(range(n), s)``. The observations are those of all environments.
        """
        fresh = [i for i in range(self.num_envs) if self._obs[i] is None and i not in snapshots]
        if fresh:
            raise gymnasium.error.ResetNeeded(f"environments {fresh} have neither a state nor a snapshot")
        lines = []
        for i, snapshot in snapshots.items():
            if self._dead[i] or (self.fresh and self._begun[i]):
                lines += [self._names[i].close(), self._names[i].make()]
            lines.append(self._names[i].restore(snapshot))
        infos: dict[str, Any] = {}
        bad: Exception | None = None
        replies, refusal = self._trade(lines)
        for reply, frames in replies:
            i = reply["env"]
            if reply["op"] == "make" and "episode" in reply:
                self._begun[i], self._dead[i], self._over[i] = False, False, True
            if reply["op"] != "restore" or reply.get("problem"):
                continue
            if "observation" not in reply:
                bad = self._lost(i, reply)
                continue
            self._obs[i] = self._decode(reply["observation"], frames)
            self._begun[i], self._dead[i] = True, False
            self._over[i] = reply["terminated"] or reply["truncated"]
            self._tell(infos, anything(reply.get("info") or {}, frames), i)
        if refusal is not None:
            refused(refusal)
        if bad is not None:
            raise bad
        return self._observations(), infos

    def _lost(self, i: int, reply: Mapping[str, Any]) -> Exception:
        """What stands in the place of a snapshot or of what it was restored to."""
        ended, fault = ended_of(reply), fault_of(reply)
        text = f"environment {i}: " + (f"{fault.kind}: {fault.detail}" if fault else "its episode has ended")
        if ended is None:
            assert fault is not None
            return nothing_done(replace(fault, detail=f"environment {i}: {fault.detail}"))
        self.ended[i], self._dead[i], self._over[i] = ended, True, True
        return EpisodeEnded("episode_ended", text, outcome=ended.end)

    def _check(self, actions: Any) -> None:
        """Refuse the common mistakes before any environment is stepped."""
        space = self.action_space
        if isinstance(space, gymnasium.spaces.Box):
            if np.shape(actions) != space.shape or not np.isfinite(actions).all():
                raise BadAction(
                    "bad_action", f"the actions are not finite numbers of the shape {space.shape}"
                )
        elif isinstance(space, gymnasium.spaces.MultiDiscrete) and not space.contains(np.asarray(actions)):
            raise BadAction("bad_action", f"the actions {actions!r:.200} are not in {space}")

    def _tell(self, infos: dict[str, Any], info: dict[str, Any], i: int) -> None:
        infos.update(self._add_info(infos, info, i))

    def _observations(self) -> Any:
        self._batch = concatenate(self.single_observation_space, self._obs, self._batch)
        return deepcopy(self._batch)

    def _exchange(self, lines: list[str]) -> list[tuple[dict[str, Any], list[bytes]]]:
        """Send lines and return their answers, in order of the environments' numbers."""
        replies, refusal = self._trade(lines)
        if refusal is not None:
            refused(refusal)
        return replies

    def _trade(
        self, lines: list[str]
    ) -> tuple[list[tuple[dict[str, Any], list[bytes]]], Mapping[str, Any] | None]:
        """The same, with the last that was refused."""
        if self._envs is None:
            raise gymnasium.error.ClosedEnvironmentError("the environments are closed")
        if not lines:
            return [], None
        self._envs.send(lines)
        replies = []
        refusal: Mapping[str, Any] | None = None
        for _ in lines:
            reply, frames = self._envs.receive()
            if reply.get("problem"):
                refusal = reply
            elif reply["op"] == "make":
                self.episodes[reply["env"]] = reply["episode"]
            elif reply["op"] == "close":
                self.ended[reply["env"]] = ended_of(reply)
            replies.append((reply, frames))
        replies.sort(key=lambda r: int(r[0]["env"]))
        return replies, refusal

    def close_extras(self, **kwargs: Any) -> None:
        """End the episodes well; ``ended`` then has their rewards."""
        envs, self._envs = self._envs, None
        if envs is None:
            return
        try:
            if envs.pid == os.getpid():
                envs.send(n.close() for n in self._names)
                for _ in self._names:
                    reply, _frames = envs.receive()
                    self.ended[reply["env"]] = ended_of(reply)
        finally:
            envs.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self._envs is not None:
                self._envs.close()


def trajectory(
    socket: str | os.PathLike[str] | None, id: str, *, run: str = "default", attempt: int = 0
) -> dict[str, np.ndarray[Any, Any]]:
    """What is on record of an environment's episode, as arrays of one length and order.

    ``actions``, ``rewards``, ``terminated`` and ``truncated`` have a row for each step,
    ``observations`` one more for each rollout: its first is that of the reset. ``starts``
    has the number of the first step of each rollout; a restore begins one, too. Parts of
    an observation or action that is a Dict are called ``observations/name``. A simulator
    that records less than everything has no observations to give.
    """
    steps: dict[str, list[Any]] = {}
    starts: list[int] = []
    n = 0
    for call, reply, frames in recorded(socket_path(socket), run, id, attempt):
        if call["tool"] not in ("reset", "restore", "step") or "observation" not in reply:
            continue
        _gather(steps, "observations", anything(reply["observation"], frames))
        if call["tool"] != "step":
            starts.append(n)
            continue
        n += 1
        _gather(steps, "actions", anything(call["args"]["action"], []))
        for name in ("reward", "terminated", "truncated"):
            steps.setdefault(name + "s" if name == "reward" else name, []).append(reply[name])
    return {**{k: np.stack(v) for k, v in steps.items()}, "starts": np.array(starts, dtype=np.int64)}


def _gather(into: dict[str, list[Any]], name: str, value: Any) -> None:
    if isinstance(value, dict):
        for k, v in value.items():
            _gather(into, f"{name}/{k}", v)
        return
    if isinstance(value, list):
        for i, v in enumerate(value):
            _gather(into, f"{name}/{i}", v)
        return
    into.setdefault(name, []).append(np.asarray(value))


def export(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a trajectory: as ``.npz``, or as ``.jsonl`` with a line for each step."""
    if os.fspath(path).endswith(".npz"):
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
        return
    if not os.fspath(path).endswith(".jsonl"):
        raise ValueError(f"{os.fspath(path)}: a trajectory is .npz or .jsonl")
    starts = {int(s): i for i, s in enumerate(arrays["starts"])}
    seen = [k for k in arrays if k.startswith("observations")]
    rollout = -1
    with open(path, "w", encoding="utf-8") as f:
        for n in range(len(arrays["rewards"]) if "rewards" in arrays else 0):
            rollout = starts.get(n, rollout)
            line = {"step": n, "rollout": rollout}
            line |= {k: arrays[k][n + rollout].tolist() for k in seen}
            line |= {"next_" + k: arrays[k][n + rollout + 1].tolist() for k in seen}
            line |= {k: v[n].tolist() for k, v in arrays.items() if k not in seen and k != "starts"}
            f.write(json.dumps(line) + "\n")
