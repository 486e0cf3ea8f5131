"""The examples, in small: they learn, and dying does not change what they learn."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from conftest import REPO, SOURCES, Daemon

import paddock
from paddock._blocking import Transport, done

sys.path.insert(0, str(REPO / "examples"))

import tiny_grpo


def test_a_policy_learns_to_repair_programs(client: paddock.Client, world: paddock.World) -> None:
    problems = [p for p in tiny_grpo.PROBLEMS if p.id in ("mean", "divides")]
    report = asyncio.run(tiny_grpo.train(client, "tiny", problems, iterations=4, log=False))
    # Seeds are the run's: the curve is the same on every host.
    assert report.rewards[0] < 0.2
    assert report.rewards[-1] > 0.8
    assert report.lost == 0


def test_platform_faults_change_the_gradient_by_the_missing_members_alone() -> None:
    problems = tiny_grpo.PROBLEMS[:4]

    async def first_groups(client: paddock.Client) -> list[paddock.GroupResult]:
        base = client.worlds.build(busybox=True)
        async with client.run("tiny", seed=1, limits={"memory": "32MiB", "disk": "4MiB"}) as run:
            worlds = await run.worlds(
                {p.id: tiny_grpo.workshop(p.id, p.program, p.cases[0][0]) for p in problems}, base=base
            )
            grader = run.grader(["sh", "/grader/grade.sh"], tiny_grpo.grader_files(problems))
            rollout = functools.partial(tiny_grpo.rollout, policy)
            q = run.queue(rollout, grader, group_size=tiny_grpo.GROUP_SIZE)
            return await tiny_grpo.play(q, 0, problems, worlds)

    def groups_of(*flags: str) -> list[paddock.GroupResult]:
        daemon = Daemon(*flags)
        try:
            return asyncio.run(first_groups(paddock.connect(daemon.socket)))
        finally:
            daemon.close()

    policy = tiny_grpo.Policy(problems)
    whole = groups_of()
    faulty = groups_of("--inject-faults", "0.1:3")  # a tenth is killed from outside

    lost = {m.id for g in faulty for m in g.void}
    assert 1 <= len(lost) <= 10
    assert all(m.cause == "platform" and m.reward is None for g in faulty for m in g.void)
    expected = []
    for g in sorted(whole, key=lambda g: g.group):
        left = [m for m in g.members if m.id not in lost]
        advantages = paddock.advantages([m.reward for m in left])
        if any(advantages):
            for m, advantage in zip(left, advantages, strict=True):
                assert advantage is not None
                expected.append(tiny_grpo.Sample(g.task, m.payload[0], m.payload[1], advantage))
    assert expected
    assert tiny_grpo.samples_of(faulty) == expected
    assert np.array_equal(policy.gradient(tiny_grpo.samples_of(faulty)), policy.gradient(expected))


class Trainer:
    """The agentic example as a process of its own."""

    def __init__(self, daemon: Daemon, directory: Path) -> None:
        self.daemon, self.directory = daemon, directory
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, str(REPO / "examples" / "agentic_rl.py"), "--dir", str(self.directory)]
        shape = ["--iterations", "4", "--groups", "2", "--group-size", "6", "--seed", "10"]
        self.process = subprocess.Popen(
            [*command, "--socket", self.daemon.socket, *shape],
            env={"PYTHONPATH": SOURCES, "PATH": os.environ["PATH"], "HOME": str(self.directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        assert self.process is not None
        out, _ = self.process.communicate(timeout=240)
        return self.process.returncode, out

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def after(self, n: int) -> None:
        """Wait until n episodes of the run are done."""
        assert self.process is not None
        while self.process.poll() is None and self._done() < n:
            time.sleep(0.02)
        assert self.process.poll() is None, self.end()

    def _done(self) -> int:
        # Without the run's generation, since a driver would fence the trainer.
        url = "/v1/runs/agentic/episodes"
        try:
            page = done(Transport.at(self.daemon.socket).json("GET", url, query={"max": 10000}))
        except paddock.NotFound:
            return 0  # it has not opened the run yet
        return sum(e["state"] == "done" for e in page["episodes"])

    def outcome(self) -> tuple[dict[str, Any], dict[str, Any]]:
        checkpoint = json.loads((self.directory / "checkpoint.json").read_text())
        return checkpoint, json.loads((self.directory / "episodes.json").read_text())


def test_the_agentic_loop_killed_at_three_points_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole_daemon, killed_daemon = (Daemon("--inject-faults", "0.2:7") for _ in range(2))
    try:
        whole = Trainer(whole_daemon, tmp_path / "whole")
        whole.start()
        code, said = whole.end()
        assert code == 0, said
        whole_daemon.stop()

        killed = Trainer(killed_daemon, tmp_path / "killed")
        points = sorted(random.sample(range(1, 44), 3))
        killed.start()
        killed.after(points[0])
        killed.kill()
        killed.start()
        killed.after(points[1])
        killed_daemon.kill()
        code, said = killed.end()
        assert code == 1
        assert "the daemon is gone" in said, said
        killed_daemon.start("--inject-faults", "0.2:7")
        killed.start()
        killed.after(points[2])
        killed.kill()
        killed.start()
        code, said = killed.end()
        assert code == 0, said

        (state, episodes), (state_killed, episodes_killed) = whole.outcome(), killed.outcome()
        assert state_killed == state, points
        assert episodes_killed == episodes, points
        assert len(episodes) == 4 * 2 * 6
        assert state["means"][-1] - state["means"][0] >= 0.2
        assert {e["tidy"] for e in episodes.values()} == {0.0, 1.0}
        killed_daemon.stop()
        assert killed_daemon.strays() == []
    finally:
        whole_daemon.close()
        killed_daemon.close()


def test_the_examples_say_how_they_are_used() -> None:
    for name in ("agentic_rl.py", "tiny_grpo.py"):
        done = subprocess.run(
            [sys.executable, str(REPO / "examples" / name), "--help"],
            env={"PYTHONPATH": SOURCES, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "--socket" in done.stdout
