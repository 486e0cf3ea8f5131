#!/usr/bin/env python3
"""The agentic loop: rollouts in groups, a policy that learns, a trainer that may die at any time.

Each world is a folder of documents, one of which holds a secret. An agent reads documents, one
tool call each, in an order drawn from the policy's weights and the episode's sample seed, until
it finds the secret or has used its turns; it writes answer.txt, and sometimes leaves a scratch
file. A grader rewards finding the secret, fewer turns, and a tidy desk. The weights move toward
what was rewarded.

Killed with -9 at any point, trainer or daemon, and started again with the same directory, it
goes on: the checkpoint says which iteration is next, the same groups are added again, and the
daemon gives what was kept of them. Episodes that were cut short are played again from the same
seeds, so the weights come out the same. At the end all episodes are scored again with another
reward, without an agent.

    pip install paddock-rl
    python agentic_rl.py --dir /tmp/agentic                 # as root: brings a daemon of its own
    python agentic_rl.py --dir /tmp/agentic --socket /run/paddock/paddock.sock
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import paddock
from paddock import aio

KINDS = ("ledger", "letter", "log")
DOCUMENTS_OF_KIND = 4
MAX_TURNS = 6
WORLDS = 6
RATE = 1.0

Weights = dict[str, float]


@dataclass(frozen=True)
class Folder:
    """A task: a folder of documents. The secrets are in letters, which nobody tells the agent."""

    id: str

    @property
    def holder(self) -> str:
        return f"letter-{random.Random(self.id).randrange(DOCUMENTS_OF_KIND)}.txt"

    @property
    def secret(self) -> str:
        return f"{random.Random(self.id + ' secret').getrandbits(64):016x}"

    @property
    def published(self) -> str:
        """What the agent is given to know the secret by."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


@paddock.world(config=paddock.WorldConfig(working_dir="/workdir"))
def documents(directory: Path, folder: Folder) -> None:
    """The folder's documents. Each has a line in the form of a secret."""
    dice = random.Random(folder.id + " text")
    (directory / "workdir").mkdir()
    (directory / "docs").mkdir()
    for kind in KINDS:
        for i in range(DOCUMENTS_OF_KIND):
            name = f"{kind}-{i}.txt"
            secret = f"{dice.getrandbits(64):016x}"
            if name == folder.holder:
                secret = folder.secret
            (directory / "docs" / name).write_text(f"A {kind} of {folder.id}.\nsecret: {secret}\n")


# found the secret, fewer turns, no scratch
REWARD = """\
exec 9>&"$PADDOCK_VERDICT_FD"
want=$(sed 's/.*"published": *"\\([0-9a-f]*\\)".*/\\1/' "$PADDOCK_INPUTS/spec.json")
turns=$(grep -c '"tool":"read_file"' "$PADDOCK_INPUTS/trajectory.jsonl")
found=0 scratch=0
if [ -f /workdir/answer.txt ] && [ ! -L /workdir/answer.txt ]; then
	[ "$(head -c 1000 /workdir/answer.txt | sha256sum | cut -d' ' -f1)" = "$want" ] && found=1
fi
grep -q '"path":"/workdir/scratch.tmp"' "$PADDOCK_INPUTS/capture.json" && scratch=1
reward=$(awk -v f=$found -v n=$turns -v s=$scratch -v m="$MOST" \\
	'BEGIN { r = f * (1 - 0.5 * (n - 1) / m) - 0.1 * s; printf "%.4f", r < 0 ? 0 : r }')
metrics="\\"found\\": $found, \\"turns\\": $turns, \\"scratch\\": $scratch"
echo "{\\"reward\\": $reward, \\"metrics\\": {$metrics}}" >&9
"""

# another look at the same end states: was the desk left tidy, whatever was found?
TIDY = """\
[ -e /workdir/scratch.tmp ] && reward=0 || reward=1
echo "{\\"reward\\": $reward}" >&"$PADDOCK_VERDICT_FD"
"""


@dataclass
class Checkpoint:
    """What a trainer must know to go on; written whole, or not at all."""

    iteration: int = 0
    weights: Weights = field(default_factory=lambda: {**dict.fromkeys(KINDS, 0.0), "scratch": 0.0})
    means: list[float] = field(default_factory=list)

    @staticmethod
    def load(path: Path) -> Checkpoint:
        return Checkpoint(**json.loads(path.read_text())) if path.exists() else Checkpoint()

    def save(self, path: Path) -> None:
        part = path.with_suffix(".part")
        with open(part, "w") as f:
            json.dump(asdict(self), f)
            f.flush()
            os.fsync(f.fileno())
        part.rename(path)


# The policy: a softmax over the kinds of the documents that are left, and a coin for scratch.


def chances(weights: Weights, left: Sequence[str]) -> list[float]:
    """The chance of each document that is left to be read next."""
    grades = [math.exp(weights[name.partition("-")[0]]) for name in left]
    return [g / sum(grades) for g in grades]


def chance_of_scratch(weights: Weights) -> float:
    return 1 / (1 + math.exp(-weights["scratch"]))


def slope(weights: Weights, choices: Mapping[str, Any]) -> Weights:
    """The gradient of the log-probability of what an episode chose."""
    total = dict.fromkeys(weights, 0.0)
    total["scratch"] = float(choices["scratch"]) - chance_of_scratch(weights)
    left = list(choices["documents"])
    for name in choices["read"]:
        for other, p in zip(left, chances(weights, left), strict=True):
            total[other.partition("-")[0]] -= p
        total[name.partition("-")[0]] += 1.0
        left.remove(name)
    return total


def step(weights: Weights, samples: Sequence[tuple[Mapping[str, Any], float]]) -> Weights:
    """Move toward what was rewarded more than the rest of its group."""
    moved = dict(weights)
    for choices, advantage in samples:
        for name, value in slope(weights, choices).items():
            moved[name] += RATE * advantage * value / len(samples)
    return moved


class Agent:
    """Plays episodes with the weights it has."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    async def rollout(self, ep: aio.Episode, folder: Folder) -> None:
        dice = random.Random(ep.sample_seed)
        scratch = dice.random() < chance_of_scratch(self.weights)
        listed = await ep.list("/docs")
        names = sorted(e.name for e in listed.entries)
        left, answer = list(names), ""
        read: list[str] = []
        while left and len(read) < MAX_TURNS and not answer:
            (name,) = dice.choices(left, chances(self.weights, left))
            text = (await ep.read(f"/docs/{name}")).text
            left.remove(name)
            read.append(name)
            secret = text.rpartition("secret: ")[2].strip()
            if hashlib.sha256(secret.encode()).hexdigest() == folder.published:
                answer = secret
        if scratch:
            await ep.exec(f"echo 'read {len(read)} documents' >scratch.tmp", cwd="/workdir")
        await ep.write("/workdir/answer.txt", answer)
        payload = {"documents": names, "read": read, "scratch": scratch}
        await ep.finish(answer=answer, payload=payload)


def pick(folders: Sequence[Folder], iteration: int, n: int) -> list[Folder]:
    """An iteration's tasks, by its number alone."""
    return random.Random(iteration).sample(list(folders), n)


async def train(client: paddock.Client, o: argparse.Namespace) -> Checkpoint:
    state = Checkpoint.load(o.dir / "checkpoint.json")
    agent = Agent(state.weights)
    folders = [Folder(f"folder-{i}") for i in range(WORLDS)]
    base = client.worlds.build(busybox=True)
    async with client.run(
        "agentic",
        seed=o.seed,
        resume="auto",
        retries=3,
        limits={"memory": "64MiB", "disk": "8MiB"},
        requests={"memory": "8MiB"},
    ) as run:
        worlds = await run.worlds({f.id: documents(f) for f in folders}, base=base, cache="auto")
        most = {"MOST": str(MAX_TURNS)}
        grader = run.grader(["sh", "/grader/reward.sh"], {"reward.sh": REWARD}, env=most)
        q = run.queue(agent.rollout, grader, group_size=o.group_size)
        while state.iteration < o.iterations:
            agent.weights = state.weights
            for f in pick(folders, state.iteration, o.groups):
                q.add(
                    f"it{state.iteration:03}/{f.id}",
                    task=f,
                    world=worlds[f.id],
                    weights=f"v{state.iteration}",
                    input={"published": f.published, "documents": "/docs"},
                )
            groups = sorted([g async for g in q.groups()], key=lambda g: g.group)
            samples = [(m.payload, g.advantage(m)) for g in groups if g.spread for m in g.valid]
            rewards = [m.reward for g in groups for m in g.valid if m.reward is not None]
            mean = sum(rewards) / len(rewards)
            state = Checkpoint(
                state.iteration + 1,
                step(state.weights, samples) if samples else state.weights,
                [*state.means, mean],
            )
            state.save(o.dir / "checkpoint.json")
            retried = sum(m.attempt > 1 for g in groups for m in g.members)
            print(
                f"iteration {state.iteration - 1:3}  mean reward {mean:.3f}  {len(rewards)} samples,"
                f" {retried} of them retried",
                flush=True,
            )
        await look_back(run, q, o.dir)
    return state


async def look_back(run: aio.Run, q: aio.Queue, directory: Path) -> None:
    """Score all episodes again with another reward, and write down what they did."""
    tidy = await run.grader(["sh", "/grader/tidy.sh"], {"tidy.sh": TIDY})
    again = await q.rescore(tidy)
    second = {r.id: r.reward async for r in again.results()}
    told = {}
    async for e in run.episodes():
        assert e.last is not None
        told[e.id] = {
            "reward": e.reward,
            "tidy": second[e.id],
            "actions": e.last.digests.actions,
            "state": e.last.digests.state,
        }
    (directory / "episodes.json").write_text(json.dumps(told, indent=1, sort_keys=True))
    mean = sum(r for r in second.values() if r is not None) / max(len(second), 1)
    print(f"scored again: {len(second)} end states, {mean:.3f} of them tidy; no agent ran", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("agentic"), help="where the checkpoint is kept")
    parser.add_argument("--socket", help="a running daemon's; else one is started, which needs root")
    parser.add_argument(
        "--faults", type=float, default=0.1, help="share of first attempts that are killed on purpose"
    )
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--groups", type=int, default=4, help="of an iteration")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    o = parser.parse_args()
    o.dir.mkdir(parents=True, exist_ok=True)
    try:
        if o.socket:
            client = paddock.connect(o.socket)
        else:
            client = paddock.local(o.dir / "daemon", flags=["--inject-faults", f"{o.faults}:7"])
        state = asyncio.run(train(client, o))
    except paddock.Unavailable as e:
        sys.exit(f"the daemon is gone: {e}\nStart this again with the same --dir: it goes on from there.")
    weights = {k: round(v, 3) for k, v in state.weights.items()}
    print(f"mean reward {state.means[0]:.3f} at first, {state.means[-1]:.3f} at last; weights {weights}")


if __name__ == "__main__":
    main()
