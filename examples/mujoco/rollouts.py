"""Rolls a scripted gait out in MuJoCo's HalfCheetah, many environments beside each other.

    python3 examples/mujoco/rollouts.py [--envs 8] [--steps 100] [--out trajectories]

Needs a daemon, gymnasium, and the world that examples/mujoco/world.py builds. Every
environment is an episode with a sandbox of its own; the sum of its rewards is its score.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import paddock
import paddock.gym
import world


def gait(step: int, n: int) -> np.ndarray:
    """Legs that swing against each other, each environment's a little quicker than the last's."""
    phase = step * (0.4 + 0.05 * np.arange(n))[:, None] + np.array([0.0, 1.0, 2.0, 3.1, 4.1, 5.1])
    return np.sin(phase).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    client = paddock.connect()
    built = world.build(client, "mujoco")
    run = client.run("mujoco-rollouts", resume="auto")
    base = f"g{run.generation}"
    envs = paddock.gym.make_vec(
        "HalfCheetah-v5",
        world=built,
        num_envs=args.envs,
        run=run.name,
        id=base,
        step_s=60.0,
        socket=client.socket,
    )
    envs.reset(seed=7)
    total = np.zeros(args.envs)
    for step in range(args.steps):
        _, rewards, _, _, _ = envs.step(gait(step, args.envs))
        total += rewards
    envs.close()
    for i, ended in enumerate(envs.ended):
        if ended is None or ended.reward is None or abs(ended.reward - total[i]) > 1e-6:
            raise SystemExit(f"environment {i}: {ended}, and its rewards are {total[i]}")
        arrays = paddock.gym.trajectory(client.socket, f"{base}/{i}", run=run.name)
        if len(arrays["rewards"]) != args.steps or len(arrays["observations"]) != args.steps + 1:
            raise SystemExit(f"environment {i}: { ({k: v.shape for k, v in arrays.items()}) } are on record")
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            paddock.gym.export(args.out / f"{i}.npz", arrays)
    best = int(total.argmax())
    print(
        f"mujoco: {args.envs} environments of {args.steps} steps, all on record; the best gait is {best}: {total[best]:.2f}"
    )


if __name__ == "__main__":
    main()
