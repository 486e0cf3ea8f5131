"""A training loop's skeleton on a data set of math problems: sample, answer, score, go on.

The policy here is a stand-in that is right more often the longer it trains, so that the loop
has something to show. It stops in the middle and goes on, as after a kill: the next sample
depends on the iteration alone.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import paddock
from paddock.dataset import Dataset, Problem

ITERATIONS, BATCH = 12, 25  # three epochs of a hundred problems


def problems() -> str:
    rng = random.Random(1)
    lines = []
    for i in range(100):
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        answer = rf"\frac{{{a}}}{{{b}}}" if i % 2 else str(a * b)
        prompt = f"What is {a} divided by {b}?" if i % 2 else f"What is {a} times {b}?"
        lines.append(json.dumps({"id": f"m{i}", "prompt": prompt, "answer": answer}))
    return "\n".join(lines)


def policy(problem: Problem, iteration: int) -> str:
    """Right with a probability that grows; right answers come in another notation."""
    rng = random.Random(f"{problem.id} {iteration}")
    words = problem.prompt.rstrip("?").split()
    a, b = int(words[2]), int(words[-1])
    if rng.random() > (iteration + 1) / ITERATIONS:
        return rf"I guess \boxed{{{a + b}}}."
    return f"The answer is {a}/{b}." if "divided" in words else rf"So it is \boxed{{{a * b:,}}}."


def main() -> None:
    client = paddock.connect()
    with tempfile.TemporaryDirectory() as dir:
        file = Path(dir) / "math.jsonl"
        file.write_text(problems())
        math = Dataset.put(client, file, name="example-math")
    seen: list[str] = []
    means: list[float] = []
    for iteration in range(ITERATIONS):
        if iteration == ITERATIONS // 2:  # as a new process would: nothing but the iteration is known
            math = Dataset(paddock.connect(), "example-math")
        batch = math.sample(iteration, BATCH, seed=7)
        scores = math.score([(p.id, policy(p, iteration)) for p in batch], rule="math")
        rewards = [s.score for s in scores if s.score is not None]
        seen += [p.id for p in batch]
        means.append(sum(rewards) / len(rewards))
        print(f"iteration {iteration:2}: {len(rewards)} scored, mean reward {means[-1]:.2f}")
    for epoch in range(3):
        ids = seen[epoch * 100 : (epoch + 1) * 100]
        assert sorted(ids) == sorted(f"m{i}" for i in range(100)), f"epoch {epoch} is not every problem once"
    assert means[-1] == 1.0, "the last policy is always right"
    assert sum(means[:4]) < sum(means[-4:])
    math.remove()


main()
