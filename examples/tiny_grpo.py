#!/usr/bin/env python3
"""A policy that learns by GRPO to repair programs, each try run and scored in its own episode.

A problem is an awk program with one wrong token. The policy is a softmax over the edits of
single tokens, with a weight for each edit of each problem and one for each kind of edit that
all problems share; its log-probabilities are true ones. A rollout draws an edit with the
episode's sample seed, writes the edited program, runs it on an example, and finishes with the
draw as payload. A grader that the rollout never sees runs the program on hidden cases: 1 when
all are right, else 0. Groups of 8 share a problem; what the platform loses is no sample.

    pip install paddock-rl numpy
    python tiny_grpo.py                 # as root: brings a daemon of its own
    python tiny_grpo.py --faults 0.1    # kills a tenth of the episodes from outside
    python tiny_grpo.py --socket /run/paddock/paddock.sock
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import paddock
from paddock import aio

Vector = NDArray[np.float64]

GROUP_SIZE = 8

# What a token may be replaced by.
REPLACEMENTS = {
    "<": ("<=", ">", "=="),
    "<=": ("<", ">=", "=="),
    ">": (">=", "<", "=="),
    ">=": (">", "<=", "=="),
    "==": ("!=", "<", ">"),
    "!=": ("==",),
    "+": ("-", "*", "/"),
    "-": ("+", "*"),
    "*": ("+", "-", "/"),
    "/": ("*", "+", "%"),
    "%": ("/", "*"),
    "&&": ("||",),
    "||": ("&&",),
    "$1": ("$2", "NF"),
    "$2": ("$1", "NF"),
    "0": ("1", "2"),
    "1": ("0", "2"),
    "2": ("1", "3"),
}
TOKENS = re.compile(r"\$\d|[<>!=]=|&&|\|\||\+\+|\+=|\*=|-=|[-+*/%<>]|\b[012]\b")


@dataclass(frozen=True)
class Edit:
    """A token at a place in a program, and what to put there."""

    at: int
    old: str
    new: str

    def apply(self, program: str) -> str:
        return program[: self.at] + self.new + program[self.at + len(self.old) :]


@dataclass(frozen=True)
class Problem:
    """A program with one wrong token, and cases of (input, output)."""

    id: str
    program: str
    cases: tuple[tuple[str, str], ...]

    @functools.cached_property
    def edits(self) -> tuple[Edit, ...]:
        found = []
        for m in TOKENS.finditer(self.program):
            found += [Edit(m.start(), m[0], new) for new in REPLACEMENTS.get(m[0], ())]
        return tuple(found)


PROBLEMS = (
    Problem(
        "max", "{ print ($1 < $2) ? $1 : $2 }", (("3 7", "7"), ("9 4", "9"), ("5 5", "5"), ("-2 -1", "-1"))
    ),
    Problem("abs", "{ print ($1 > 0) ? 0 - $1 : $1 }", (("-4", "4"), ("6", "6"), ("0", "0"))),
    Problem("mean", "{ print ($1 + $2) * 2 }", (("2 4", "3"), ("5 5", "5"), ("10 0", "5"))),
    Problem("even", '{ print ($1 % 2 == 1) ? "even" : "odd" }', (("4", "even"), ("7", "odd"), ("0", "even"))),
    Problem(
        "factorial",
        "{ r = 0; for (i = 1; i <= $1; i++) r = r * i; print r }",
        (("1", "1"), ("4", "24"), ("5", "120")),
    ),
    Problem(
        "sum-to",
        "{ s = 0; for (i = 1; i < $1; i++) s = s + i; print s }",
        (("1", "1"), ("4", "10"), ("10", "55")),
    ),
    Problem(
        "power",
        "{ r = 1; for (i = 1; i <= $2; i++) r = r + $1; print r }",
        (("2 5", "32"), ("3 3", "27"), ("7 1", "7")),
    ),
    Problem(
        "both",
        '{ print ($1 > 0 || $2 > 0) ? "yes" : "no" }',
        (("1 1", "yes"), ("1 -1", "no"), ("-1 1", "no"), ("-3 -3", "no")),
    ),
    Problem(
        "column", "{ s = s + $1 } END { print s }", (("1 5", "5"), ("2 7\n3 8", "15"), ("9 1\n9 1", "2"))
    ),
    Problem(
        "divides", '{ print ($2 / $1 == 0) ? "yes" : "no" }', (("3 9", "yes"), ("2 7", "no"), ("5 5", "yes"))
    ),
    Problem(
        "fibonacci",
        "{ a = 0; b = 1; for (i = 0; i < $1; i++) { t = a - b; a = b; b = t } print a }",
        (("0", "0"), ("1", "1"), ("6", "8"), ("10", "55")),
    ),
    Problem(
        "far", '{ print ($1 - $2 > 2) ? "far" : "near" }', (("9 1", "far"), ("3 1", "far"), ("2 1", "near"))
    ),
)


class Policy:
    """A softmax over a problem's edits, linear in its weights."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._offsets: dict[str, int] = {}
        self._kinds: dict[tuple[str, str], int] = {}
        n = 0
        for p in problems:
            self._offsets[p.id] = n
            n += len(p.edits)
        for p in problems:
            for e in p.edits:
                self._kinds.setdefault((e.old, e.new), n + len(self._kinds))
        self.weights: Vector = np.zeros(n + len(self._kinds))

    def _features(self, problem: Problem) -> tuple[slice, list[int]]:
        """Where the weights of a problem's edits are: each its own, and its kind's."""
        first = self._offsets[problem.id]
        return slice(first, first + len(problem.edits)), [self._kinds[e.old, e.new] for e in problem.edits]

    def log_probabilities(self, problem: Problem) -> Vector:
        own, kinds = self._features(problem)
        logits = self.weights[own] + self.weights[kinds]
        logits = logits - logits.max()
        return np.asarray(logits - math.log(np.exp(logits).sum()))

    def sample(self, problem: Problem, seed: int) -> tuple[int, float]:
        """An edit's number and its log-probability; the same for the same seed and weights."""
        log_p = self.log_probabilities(problem)
        choice = int(np.random.default_rng(seed).choice(len(log_p), p=np.exp(log_p)))
        return choice, float(log_p[choice])

    def gradient(self, samples: Sequence[Sample], clip: float = 0.2) -> Vector:
        """The gradient of GRPO's objective: the clipped ratio times the advantage, averaged."""
        total = np.zeros_like(self.weights)
        for s in samples:
            log_p = self.log_probabilities(s.problem)
            ratio = math.exp(log_p[s.choice] - s.log_p)
            if (s.advantage > 0 and ratio > 1 + clip) or (s.advantage < 0 and ratio < 1 - clip):
                continue  # the clipped term is the smaller one, and is flat
            slope = -np.exp(log_p)
            slope[s.choice] += 1.0
            slope *= ratio * s.advantage / len(samples)
            own, kinds = self._features(s.problem)
            total[own] += slope
            np.add.at(total, kinds, slope)
        return total

    def update(self, samples: Sequence[Sample], rate: float, epochs: int = 2) -> None:
        for _ in range(epochs):
            self.weights = self.weights + rate * self.gradient(samples)


@dataclass(frozen=True)
class Sample:
    """One valid member of a group, as the update uses it."""

    problem: Problem
    choice: int
    log_p: float
    advantage: float


@dataclass
class Report:
    """What came of a run."""

    rewards: list[float] = field(default_factory=list)  # mean of each iteration
    lost: int = 0  # members that gave no sample


@paddock.world(config=paddock.WorldConfig(working_dir="/workdir"))
def workshop(directory: Path, problem: str, program: str, example: str) -> None:
    """A directory with the wrong program and an example of its input."""
    work = directory / "workdir"
    work.mkdir()
    (work / "program.awk").write_text(program)
    (work / "example.txt").write_text(example + "\n")


GRADE = """\
exec 9>&"$PADDOCK_VERDICT_FD"
task=$(sed 's/.*"task": *"\\([a-z-]*\\)".*/\\1/' "$PADDOCK_INPUTS/spec.json")
right=0 all=0
for case in /grader/cases/"$task"/*.in; do
	all=$((all + 1))
	got=$(timeout 5 awk -f /workdir/program.awk <"$case" 2>/dev/null)
	[ "$got" = "$(cat "${case%.in}.out")" ] && right=$((right + 1))
done
[ "$right" = "$all" ] && reward=1 || reward=0
echo "{\\"reward\\": $reward, \\"metrics\\": {\\"right\\": $right, \\"cases\\": $all}}" >&9
"""


def grader_files(problems: Sequence[Problem]) -> dict[str, str]:
    files = {"grade.sh": GRADE}
    for p in problems:
        for i, (given, wanted) in enumerate(p.cases):
            files[f"cases/{p.id}/{i}.in"] = given + "\n"
            files[f"cases/{p.id}/{i}.out"] = wanted + "\n"
    return files


async def rollout(policy: Policy, ep: aio.Episode, problem: Problem) -> None:
    """Draw an edit, try the program, finish."""
    choice, log_p = policy.sample(problem, ep.sample_seed)
    edit = problem.edits[choice]
    await ep.write("/workdir/program.awk", edit.apply(problem.program))
    await ep.exec("awk -f program.awk <example.txt", timeout=5)
    await ep.finish(answer=[edit.old, edit.new, edit.at], payload=(choice, log_p))


def samples_of(groups: Sequence[paddock.GroupResult]) -> list[Sample]:
    """The valid members of groups in which there is something to learn."""
    return [
        Sample(g.task, m.payload[0], m.payload[1], g.advantage(m))
        for g in sorted(groups, key=lambda g: g.group)
        if g.spread
        for m in g.valid
    ]


async def play(
    q: aio.Queue, it: int, problems: Sequence[Problem], worlds: dict[str, Any]
) -> list[paddock.GroupResult]:
    """One iteration: a group for each problem."""
    for p in problems:
        q.add(f"it{it:03}/{p.id}", task=p, world=worlds[p.id], weights=f"v{it}")
    return [g async for g in q.groups()]


async def train(
    client: paddock.Client,
    name: str,
    problems: Sequence[Problem] = PROBLEMS,
    iterations: int = 20,
    rate: float = 12.0,
    retries: int = 0,
    log: bool = True,
) -> Report:
    """Learn for some iterations; members that the platform lost are left out, if not retried."""
    policy, report = Policy(problems), Report()
    base = client.worlds.build(busybox=True)
    async with client.run(
        name,
        seed=1,
        resume="auto",
        retries=retries,
        limits={"memory": "32MiB", "disk": "4MiB"},
        requests={"memory": "8MiB"},
    ) as run:
        worlds = await run.worlds(
            {p.id: workshop(p.id, p.program, p.cases[0][0]) for p in problems}, base=base
        )
        grader = run.grader(["sh", "/grader/grade.sh"], grader_files(problems))
        q = run.queue(functools.partial(rollout, policy), grader, group_size=GROUP_SIZE)
        for it in range(iterations):
            began = time.monotonic()
            groups = await play(q, it, problems, worlds)
            rewards = [m.reward for g in groups for m in g.valid if m.reward is not None]
            report.rewards.append(sum(rewards) / max(len(rewards), 1))
            report.lost += sum(len(g.void) for g in groups)
            policy.update(samples_of(groups), rate)
            if log:
                took = time.monotonic() - began
                print(f"iteration {it:3}  mean reward {report.rewards[-1]:.3f}  {took:.1f} s", flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--socket", help="a running daemon's; else one is started, which needs root")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument(
        "--faults", type=float, default=0.0, help="share of episodes that are killed from outside"
    )
    parser.add_argument("--name", default="tiny-grpo", help="of the run")
    o = parser.parse_args()
    flags = ["--inject-faults", f"{o.faults}:1"] if o.faults else []
    client = paddock.connect(o.socket) if o.socket else paddock.local(flags=flags)
    began = time.monotonic()
    report = asyncio.run(train(client, o.name, iterations=o.iterations))
    print(
        json.dumps(
            {
                "first": round(report.rewards[0], 3),
                "last": round(report.rewards[-1], 3),
                "lost": report.lost,
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    )
    sys.exit(0 if report.rewards[-1] > 0.8 else 1)


if __name__ == "__main__":
    main()
