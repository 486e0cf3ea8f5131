"""The training loop: queues, groups, resume. Its first test is the loop of the documents."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Daemon

import paddock
from paddock import aio

Name = Callable[[], str]
GRADE = 'echo "{\\"reward\\": $(cat /tmp/points)}" >&"$PADDOCK_VERDICT_FD"'
SMALL: dict[str, Any] = {"limits": {"memory": "32MiB", "disk": "8MiB"}, "requests": {"memory": "16MiB"}}


async def answer_seed(ep: aio.Episode, task: Any) -> None:
    """Writes the last bit of its seed, as an agent with luck would."""
    await ep.exec(f"echo {ep.sample_seed % 2} > /tmp/points")
    await ep.finish(payload=[ep.id, ep.sample_seed])


@pytest.fixture(scope="session")
def points(client: paddock.Client) -> paddock.Grader:
    """Gives what /tmp/points says."""
    return client.grader(["sh", "/grader/g"], {"g": GRADE})


def open_run(client: paddock.Client, name: str, **more: Any) -> paddock.Run:
    return client.run(name, resume="auto", **{**SMALL, **more})


def test_groups_come_whole_with_payloads_and_advantages(
    client: paddock.Client, world: paddock.World, points: paddock.Grader, fresh_name: Name
) -> None:
    async def main() -> list[paddock.GroupResult]:
        async with open_run(client, fresh_name()) as run:
            q = run.queue(answer_seed, points, group_size=4)
            for i in range(3):
                q.add(f"it0/t{i}", task={"n": i}, world=world, weights="v1")
            return [g async for g in q.groups()]

    groups = asyncio.run(main())
    assert sorted(g.group for g in groups) == ["it0/t0", "it0/t1", "it0/t2"]
    for g in groups:
        assert [m.id for m in g.valid] == [f"{g.group}/s{i}" for i in range(4)]
        assert g.task == {"n": int(g.group[-1])}
        for m in g.valid:
            assert m.payload[0] == m.id
            assert m.reward == m.payload[1] % 2
        advantages = paddock.advantages(g.rewards)
        assert [g.advantage(m) for m in g.valid] == list(advantages)
        assert g.spread == (len(set(g.rewards)) > 1)


def test_a_rollout_that_raises_is_retried_from_the_top_and_then_void(
    client: paddock.Client,
    world: paddock.World,
    points: paddock.Grader,
    fresh_name: Name,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def rollout(ep: aio.Episode, task: str) -> None:
        assert not (await ep.read("/tmp/points")).ok, "a retry begins with the world"
        await ep.exec("echo 1 > /tmp/points")
        if ep.id.endswith("s0") or (ep.id.endswith("s1") and ep.attempt == 1):
            raise OSError("the model is away")
        await ep.finish()

    async def main() -> paddock.GroupResult:
        async with open_run(client, fresh_name(), retries=1) as run:
            q = run.queue(rollout, points, group_size=3, min_valid=1)
            q.add("g", task="t", world=world)
            q.seal()
            (group,) = [g async for g in q.groups()]
            return group

    with caplog.at_level(logging.ERROR):
        g = asyncio.run(main())
    assert [(m.valid, m.attempt, m.cause) for m in g.members] == [
        (False, 2, "client"),
        (True, 2, "agent"),
        (True, 1, "agent"),
    ]
    assert "the model is away" in g.members[0].result.reason
    assert (g.mean, [m.id for m in g.void]) == (1.0, ["g/s0"])
    with pytest.raises(paddock.BadRequest, match="no valid member"):
        g.advantage(g.members[0])


def test_a_void_group_has_no_samples(
    client: paddock.Client, world: paddock.World, points: paddock.Grader, fresh_name: Name
) -> None:
    async def rollout(ep: aio.Episode, task: Any) -> None:
        if ep.id.endswith("s0"):
            await answer_seed(ep, task)
        else:
            await ep.abort("the model is away")

    async def main() -> paddock.GroupResult:
        async with open_run(client, fresh_name()) as run:
            q = run.queue(rollout, points, group_size=3, min_valid=2)
            q.add("g", world=world)
            q.seal()
            (group,) = [g async for g in q.groups()]
            return group

    g = asyncio.run(main())
    assert (g.is_void, g.valid, g.spread, len(g.void)) == (True, (), False, 3)


def test_refilled_members_get_the_same_task(
    client: paddock.Client, world: paddock.World, points: paddock.Grader, fresh_name: Name
) -> None:
    tasks: list[Any] = []

    async def rollout(ep: aio.Episode, task: Any) -> None:
        tasks.append(task)
        if ep.id == "g/s1":
            await ep.abort("lost")
        else:
            await answer_seed(ep, task)

    async def main() -> paddock.GroupResult:
        async with open_run(client, fresh_name()) as run:
            q = run.queue(rollout, points, group_size=3, on_void="refill:2")
            q.add("g", task=("a", 1), world=world)
            (group,) = [g async for g in q.groups()]
            return group

    g = asyncio.run(main())
    assert (len(g.valid), g.refills) == (3, 1)
    assert {m.id for m in g.valid} == {"g/s0", "g/s1~1", "g/s2"}
    assert tasks == [("a", 1)] * 4


def test_a_plain_function_plays_in_a_thread(
    client: paddock.Client, world: paddock.World, points: paddock.Grader, fresh_name: Name
) -> None:
    def rollout(ep: paddock.Episode, task: str) -> None:
        ep.exec(f"echo {task} > /tmp/points")
        ep.finish(payload=task)

    async def main() -> paddock.GroupResult:
        async with open_run(client, fresh_name()) as run:
            q = run.queue(rollout, points, group_size=4)
            q.add("g", task="0.5", world=world)
            (group,) = [g async for g in q.groups()]
            return group

    g = asyncio.run(main())
    assert [(m.reward, m.payload) for m in g.valid] == [(0.5, "0.5")] * 4


def test_a_queue_without_an_event_loop(
    client: paddock.Client,
    world: paddock.World,
    points: paddock.Grader,
    fresh_name: Name,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rollout(ep: paddock.Episode, task: float) -> None:
        ep.exec(f"echo {task} > /tmp/points")
        ep.finish(payload=task)

    run = open_run(client, fresh_name())
    with run.queue(rollout, points, group_size=2, progress=True) as q:
        for i in range(3):
            q.add(f"g{i}", task=i / 4, world=world)
        groups = list(q.groups(2))
        groups += q.groups()
        assert sorted(g.mean or 0.0 for g in groups) == [0.0, 0.25, 0.5]
        assert all(m.payload == g.mean for g in groups for m in g.valid)
        q.add("bad", world="atlantis")
        with pytest.raises(paddock.NotFound):
            list(q.groups())
    assert "groups" in capsys.readouterr().err, "a progress bar where it is asked for"


def test_judges_are_the_clients_and_their_failure_is_no_zero(
    client: paddock.Client, world: paddock.World, points: paddock.Grader, fresh_name: Name
) -> None:
    async def rollout(ep: aio.Episode, task: Any) -> None:
        await ep.exec("echo 1 > /tmp/points")
        await ep.finish(answer="x" * (1 + int(ep.id[-1])))

    async def brevity(ep: aio.Episode) -> tuple[float, dict[str, float]]:
        assert ep.last is not None
        if ep.id.endswith("s1"):
            raise ConnectionError("the judge is away")
        return 1 / len(ep.last.answer), {"letters": len(ep.last.answer)}

    async def main() -> paddock.GroupResult:
        async with open_run(client, fresh_name()) as run:
            judge = paddock.Judge("brevity", brevity, weight=0.5)
            q = run.queue(rollout, points, judge, group_size=2, min_valid=1)
            q.add("g", world=world)
            q.seal()
            (group,) = [g async for g in q.groups()]
            return group

    g = asyncio.run(main())
    first, second = g.members
    assert first.reward == 1.5
    assert [(s.source, s.reward) for s in first.result.scores if s.source == "client"] == [("client", 1.0)]
    assert (second.reward, second.valid) == (None, False)


def test_a_deadline_gives_groups_as_they_are(
    client: paddock.Client, world: paddock.World, points: paddock.Grader, fresh_name: Name
) -> None:
    async def rollout(ep: aio.Episode, task: Any) -> None:
        if ep.id.endswith("s1"):
            await asyncio.sleep(600)
        await answer_seed(ep, task)

    async def main() -> paddock.GroupResult:
        async with open_run(client, fresh_name()) as run:
            q = run.queue(rollout, points, group_size=2, min_valid=1)
            q.add("g", world=world)
            (group,) = [g async for g in q.groups(deadline=2)]
            return group

    g = asyncio.run(main())
    assert [(m.valid, m.status, m.cause) for m in g.members] == [
        (True, "ok", "agent"),
        (False, "cancelled", "client"),
    ]


def test_stale_weights_are_cancelled(
    client: paddock.Client, world: paddock.World, points: paddock.Grader, fresh_name: Name
) -> None:
    async def rollout(ep: aio.Episode, task: Any) -> None:
        if ep.info.weights == "v1":
            await asyncio.sleep(600)
        await answer_seed(ep, task)

    async def main() -> list[paddock.GroupResult]:
        async with open_run(client, fresh_name()) as run:
            q = run.queue(rollout, points, group_size=2, min_valid=1)
            q.add("old", world=world, weights="v1")
            await q.flush()
            q.add("new", world=world, weights="v2")
            q.cancel(weights_before="v2")
            return [g async for g in q.groups()]

    groups = {g.group: g for g in asyncio.run(main())}
    assert [m.status for m in groups["old"].members] == ["cancelled", "cancelled"]
    assert len(groups["new"].valid) == 2


def test_older_weights_and_other_trouble_are_raised_where_groups_are_read(
    client: paddock.Client, world: paddock.World, points: paddock.Grader, fresh_name: Name
) -> None:
    name = fresh_name()

    async def main(weights: str, **spec: Any) -> list[paddock.GroupResult]:
        async with open_run(client, name) as run:
            q = run.queue(answer_seed, points, group_size=2)
            q.add("g", **{"world": world, "weights": weights, **spec})
            return [g async for g in q.groups()]

    (made,) = asyncio.run(main("v2"))
    (kept,) = asyncio.run(main("v2"))
    assert [(m.id, m.reward, m.payload) for m in kept.members] == [
        (m.id, m.reward, m.payload) for m in made.members
    ]
    with pytest.raises(paddock.SpecConflict) as e:
        asyncio.run(main("v1"))
    assert {d.pointer.rsplit("/", 1)[-1] for d in e.value.pointers} == {"weights"}
    with pytest.raises(paddock.NotFound, match="atlantis"):
        asyncio.run(main("v2", world="atlantis"))
    with pytest.raises(TypeError, match="speed"):
        asyncio.run(main("v2", speed=1))
    with pytest.raises(paddock.BadRequest, match="want a world"):
        asyncio.run(main("v2", world=42))


def test_a_second_driver_fences_the_first_which_is_told(
    client: paddock.Client, world: paddock.World, points: paddock.Grader, fresh_name: Name
) -> None:
    name = fresh_name()
    begun: asyncio.Event

    async def forever(ep: aio.Episode, task: Any) -> None:
        begun.set()
        while True:
            await ep.exec("sleep 0.05")

    async def main() -> paddock.GroupResult:
        nonlocal begun
        begun = asyncio.Event()
        async with open_run(client, name) as run:
            q = run.queue(forever, points, group_size=2)
            q.add("g", world=world)
            first = asyncio.create_task(_all(q))
            await begun.wait()
            async with open_run(client, name) as second:
                p = second.queue(answer_seed, points, group_size=2)
                p.add("g", world=world)
                (group,) = await _all(p)
            with pytest.raises(paddock.Fenced):
                await first
            return group

    g = asyncio.run(main())
    assert len(g.valid) == 2


async def _all(q: aio.Queue) -> list[paddock.GroupResult]:
    return [g async for g in q.groups()]


@pytest.fixture
def own() -> Iterator[Daemon]:
    d = Daemon()
    yield d
    d.close()


def test_a_killed_daemon_is_a_typed_error_for_everybody_and_the_run_goes_on(own: Daemon) -> None:
    hang = True

    async def rollout(ep: aio.Episode, task: Any) -> None:
        if hang and int(ep.id[-1]) % 2:
            began.set()
            await ep.exec("sleep 600")
        await answer_seed(ep, task)

    async def main() -> list[paddock.GroupResult]:
        client = paddock.connect(own.socket)
        world = client.worlds.build(busybox=True)
        async with open_run(client, "r", retries=1) as run:
            points = run.grader(
                ["sh", "/grader/g"],
                {"g": 'echo "{\\"reward\\": $(cat /tmp/points)}" >&"$PADDOCK_VERDICT_FD"'},
            )
            q = run.queue(rollout, points, group_size=4)
            for i in range(4):
                q.add(f"g{i}", world=world)
            groups = asyncio.create_task(_all(q))
            direct = await run.create(world, "direct", retries=1)
            call = asyncio.create_task(direct.exec("sleep 600"))
            await began.wait()
            if hang:
                own.kill()
                killed = time.monotonic()
                for waiting in (groups, call):
                    with pytest.raises(paddock.Unavailable):
                        await waiting
                assert time.monotonic() - killed < 2
                return []
            call.cancel()
            return await groups

    began = asyncio.Event()
    assert asyncio.run(main()) == []
    own.start()
    hang = False
    began = asyncio.Event()
    began.set()
    groups = asyncio.run(main())
    assert sorted(g.group for g in groups) == ["g0", "g1", "g2", "g3"]
    assert all(len(g.valid) == 4 for g in groups)


def test_platform_faults_leave_the_groups_of_the_survivors(own: Daemon, fresh_name: Name) -> None:
    """Means and advantages are, member by member, those of the surviving members alone."""
    whole = _rewards_of(own)
    own.stop()
    own.start("--inject-faults", "0.1:5")
    faulty = _rewards_of(own, "faulty")
    lost = [name for name, reward in faulty.items() if reward is None]
    assert 1 <= len(lost) <= 12
    assert {k: r for k, r in whole.items() if k not in lost} == {
        k: r for k, r in faulty.items() if k not in lost
    }


def _rewards_of(daemon: Daemon, run_name: str = "whole") -> dict[str, float | None]:
    async def main() -> dict[str, float | None]:
        client = paddock.connect(daemon.socket)
        world = client.worlds.build(busybox=True)
        async with open_run(client, run_name) as run:
            points = run.grader(
                ["sh", "/grader/g"],
                {"g": 'echo "{\\"reward\\": $(cat /tmp/points)}" >&"$PADDOCK_VERDICT_FD"'},
            )
            q = run.queue(_draws, points, group_size=8, min_valid=2)
            for i in range(8):
                q.add(f"g{i}", world=world)
            q.seal()
            rewards: dict[str, float | None] = {}
            async for g in q.groups():
                alone = paddock.advantages([m.reward for m in g.valid])
                for m, advantage in zip(g.valid, alone, strict=True):
                    assert g.advantage(m) == advantage
                mean = sum(m.reward or 0.0 for m in g.valid) / len(g.valid)
                assert g.mean == pytest.approx(mean, abs=1e-12)
                rewards.update({m.id: m.reward for m in g.members})
            return rewards

    return asyncio.run(main())


async def _draws(ep: aio.Episode, task: Any) -> None:
    points = int(hashlib.sha256(ep.id.encode()).hexdigest()[:2], 16) / 256
    for step in range(4):
        await ep.exec(f"echo {points if step == 3 else 0} > /tmp/points")
    await ep.finish()
