from __future__ import annotations

import math

import pytest
from conftest import Daemon

import paddock
from paddock import Agent, EpisodeSpec


def specs(world: paddock.World, verdict: paddock.Grader, answers: list[list[str]]) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(
            world=world,
            id=f"g{i}/s{j}",
            group=f"g{i}",
            graders=[verdict],
            limits={"memory": "64MiB", "disk": "16MiB"},
            agent=Agent(calls=[f"echo {a} > /tmp/answer"], answer=a),
        )
        for i, group in enumerate(answers)
        for j, a in enumerate(group)
    ]


def test_a_batch_gives_results_groups_and_scores_again(
    client: paddock.Client, world: paddock.World, verdict: paddock.Grader
) -> None:
    wanted = specs(world, verdict, [["yes", "no", "no"], ["yes", "yes"]])
    batch = client.run("batch-run").batch(wanted, "b1", min_valid=1)
    results = list(batch.results())
    assert sorted((r.id, r.reward) for r in results) == [
        ("g0/s0", 1),
        ("g0/s1", 0),
        ("g0/s2", 0),
        ("g1/s0", 1),
        ("g1/s1", 1),
    ]
    assert all(r.valid and r.answer in ("yes", "no") for r in results)
    seqs = [r.seq for r in results]
    assert [r.seq for r in batch.results(after=seqs[2], follow=False)] == seqs[3:]
    first, second = batch.groups()
    assert first.mean == pytest.approx(1 / 3)
    assert (first.spread, second.spread) == (True, False)
    assert first.advantages() == pytest.approx((math.sqrt(2), -math.sqrt(0.5), -math.sqrt(0.5)))
    assert second.advantages() == (0.0, 0.0)
    assert (batch.info.state, batch.info.valid, batch.info.total) == ("done", 5, 5)

    fair = client.grader(["sh", "-c", 'echo "{\\"reward\\": 0.5}" >&3'], {"x": b""})
    again = paddock.rescore(batch, fair)
    assert again.id != batch.id
    assert [r.reward for r in again.results()] == [0.5] * 5
    assert again.refresh().of == batch.id
    assert client.get_batch("b1").info.total == 5
    assert {"b1", again.id} <= {b.id for b in client.batches()}


def test_a_bad_batch_is_refused_whole(
    client: paddock.Client, world: paddock.World, verdict: paddock.Grader
) -> None:
    twice = specs(world, verdict, [["yes"]]) * 2
    with pytest.raises(paddock.BadRequest):
        client.batch(twice)
    with pytest.raises(paddock.NotFound):
        client.get_batch("none")
    with pytest.raises(paddock.BadRequest, match="batches"):
        client.create_from(twice[0])


@pytest.mark.parametrize(
    ("rewards", "want"),
    [
        ((1.0, 0.0), (1.0, -1.0)),
        ((1.0, None, 0.0), (1.0, None, -1.0)),
        ((0.3, 0.3, None), (0.0, 0.0, None)),
        ((1.0, None), (None, None)),
        ((None, None), (None, None)),
        ((), ()),
    ],
)
def test_advantages_are_over_valid_members_only(
    rewards: tuple[float | None, ...], want: tuple[float | None, ...]
) -> None:
    assert paddock.advantages(rewards) == want


def test_injected_platform_faults_change_nothing_but_the_missing() -> None:
    daemon = Daemon("--inject-faults", "0.3:7")
    try:
        faulty = paddock.connect(daemon.socket)
        box = faulty.worlds.build(busybox=True).world
        grader = faulty.grader(
            ["sh", "/grader/g"],
            {"g": '[ "$(cat /tmp/answer)" = yes ] && r=1 || r=0; echo "{\\"reward\\": $r}" >&3'},
        )
        answers = [["yes", "no", "yes", "no"]] * 5
        batch = faulty.batch(specs(box, grader, answers), "f")
        results = {r.id: r for r in batch.results()}
        void = [r for r in results.values() if not r.valid]
        assert void
        assert {(r.cause, r.reward) for r in void} == {("platform", None)}
        for i, g in enumerate(batch.groups()):
            members = [results[f"g{i}/s{j}"].reward for j in range(4)]
            assert list(g.rewards) == members
            truth = [1.0 if a == "yes" else 0.0 for a in answers[i]]
            assert all(m is None or m == t for m, t in zip(members, truth, strict=True))
            surviving = paddock.advantages([m for m in members if m is not None])
            if not g.is_void:
                assert tuple(a for a in g.advantages() if a is not None) == pytest.approx(surviving)
    finally:
        daemon.close()
