#!/usr/bin/env python3
"""What stepping environments together costs over doing it in one process.

    python bench/vector.py [--socket S] [--env HalfCheetah-v5] [--world mujoco] [--envs 64]

Prints JSON; times are milliseconds. The world is one that examples/mujoco/world.py builds.
Each round steps paddock's environments and the plain ones in turn, with the same actions, and
the observations and rewards must be equal. ``per_step`` is one vector step divided by the
number of environments.
``cpu`` is the processor time of one environment's step: of this process, of the daemon, and
of the plain environment. It says what a host that has more to do than CPUs hides.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import struct
import time
from typing import Any

import gymnasium
import numpy as np

import paddock
import paddock.gym


def daemon_of(path: str) -> int:
    """The process that serves a socket."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        pid, _, _ = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def cpu_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ms(seconds: float) -> float:
    return round(seconds * 1000, 4)


def main(o: argparse.Namespace) -> dict[str, Any]:
    path = os.fspath(paddock.connect(o.socket).socket)
    daemon = daemon_of(path)
    plain = gymnasium.make_vec(o.env, o.envs, vectorization_mode="sync")
    envs = paddock.gym.make_vec(
        o.env, world=o.world, num_envs=o.envs, socket=path, step_s=60.0, reset_s=300.0
    )
    sides: dict[str, Any] = {"paddock": envs, "plain": plain}
    took: dict[str, list[float]] = {side: [] for side in sides}
    cpu = {"client": 0.0, "daemon": 0.0, "plain": 0.0}
    try:
        for side in sides.values():
            side.reset(seed=1)
        plain.action_space.seed(1)
        for warm in range(o.rounds + 2):
            actions = [plain.action_space.sample() for _ in range(o.steps)]
            found: dict[str, Any] = {}
            for name, side in sides.items():
                daemon_before, mine = cpu_of(daemon), time.process_time()
                for a in actions:
                    began = time.perf_counter()
                    found[name] = side.step(a)
                    if warm > 1:
                        took[name].append(time.perf_counter() - began)
                if warm > 1:
                    cpu["client" if name == "paddock" else "plain"] += time.process_time() - mine
                    if name == "paddock":
                        cpu["daemon"] += cpu_of(daemon) - daemon_before
            for a, b in zip(found["paddock"][:4], found["plain"][:4], strict=True):
                if not np.array_equal(a, b):
                    raise SystemExit("the two do not do the same")
    finally:
        envs.close()
        plain.close()
    n = o.rounds * o.steps * o.envs
    per = {side: statistics.median(t) / o.envs for side, t in took.items()}
    return {
        "host": {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()},
        "envs": o.envs,
        "vector_steps": o.rounds * o.steps,
        "per_step_median": {side: ms(t) for side, t in per.items()},
        "overhead_median": ms(per["paddock"] - per["plain"]),
        "cpu": {who: ms(t / n) for who, t in cpu.items()},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--socket")
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--world", default="mujoco")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=5, help="vector steps of each side in a round")
    print(json.dumps(main(parser.parse_args()), indent=1))
