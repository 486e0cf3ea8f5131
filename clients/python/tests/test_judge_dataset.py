from __future__ import annotations

import json
from pathlib import Path

import pytest

import paddock
from paddock.dataset import Dataset, Score, score
from paddock.judge import CaseResult, judge, languages


def test_code_is_judged_by_its_cases(client: paddock.Client, world: paddock.World) -> None:
    cases = [
        {"stdin": "21\n", "stdout": "42"},
        {"stdin": "1\n", "stdout": "3"},
        {"assert": "[ $x = 5 ]", "stdin": "5\n"},
    ]
    code = "read x; echo $((x*2))"
    result = judge(client, "sh", code, cases, world=world.id)
    assert [c.verdict for c in result.cases] == ["ok", "wrong", "ok"]
    assert (result.verdict, result.passed) == ("wrong", 2)
    assert result.score == pytest.approx(2 / 3)
    assert result.cases[0].run is not None
    assert result.cases[0].run.stdout == "42\n"
    told: list[CaseResult] = []
    streamed = judge(client, "sh", code, cases, world=world.id, done_case=told.append)
    assert [c.verdict for c in streamed.cases] == ["ok", "wrong", "ok"]
    assert sorted(c.index for c in told) == [0, 1, 2]
    with pytest.raises(paddock.BadRequest) as refused:
        judge(client, "cobol", "", cases, world=world.id)
    assert refused.value.field == "/language"
    assert "python" in {lang["name"] for lang in languages(client)}


def test_a_dataset_is_sampled_and_scored(client: paddock.Client, tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text(
        "".join(json.dumps({"id": f"p{i}", "prompt": f"{i}+{i}", "answer": 2 * i}) + "\n" for i in range(30))
    )
    sums = Dataset.put(client, file, name="py-sums")
    assert len(sums) == 30
    assert Dataset(client, "py-sums").digest == sums.digest
    epoch = [p.id for i in range(3) for p in sums.sample(i, 10, seed=1)]
    assert sorted(epoch) == sorted(f"p{i}" for i in range(30))
    assert [p.id for p in sums.sample(2, 10, seed=1)] == epoch[20:]
    problem = sums.sample(0, 1)[0]
    told: list[Score] = []
    scores = sums.score(
        [(problem.id, f"it is \\boxed{{{problem.answer}}}"), (problem.id, "no idea")],
        rule="number",
        done_item=told.append,
    )
    assert [s.score for s in scores] == [1.0, 0.0]
    assert not scores[1].found
    assert len(told) == 2
    alone = score(
        client, [{"completion": r"\frac{1}{2}", "answer": "0.5"}], rule="math", extract=[{"kind": "whole"}]
    )
    assert alone[0].score == 1.0
    sums.remove()
    with pytest.raises(paddock.BadRequest) as gone:
        Dataset(client, sums.digest)
    assert gone.value.kind == "unknown_dataset"
