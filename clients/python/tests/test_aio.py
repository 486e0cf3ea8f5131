from __future__ import annotations

import asyncio
import time

import pytest

import paddock
from paddock import aio


def test_many_rollouts_at_once(client: paddock.Client, world: paddock.World, verdict: paddock.Grader) -> None:
    async def rollout(c: aio.Client, answer: str) -> float | None:
        async with await c.create(
            world, graders=[verdict], limits={"memory": "64MiB", "disk": "16MiB"}
        ) as ep:
            assert (await ep.exec(f"echo {answer} > /tmp/answer")).ok
            assert (await ep.read("/tmp/answer")).text == answer + "\n"
            await ep.finish(payload=[answer])
        return ep.reward

    async def main() -> list[float | None]:
        async with await aio.connect(client.socket) as c:
            return await asyncio.gather(*(rollout(c, "yes" if i % 2 else "no") for i in range(16)))

    assert asyncio.run(main()) == [0.0, 1.0] * 8


def test_a_cancelled_task_ends_its_call_and_the_episode_goes_on(
    client: paddock.Client, world: paddock.World
) -> None:
    async def main() -> None:
        async with await aio.connect(client.socket) as c:
            ep = await c.create(world)
            began = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ep.exec("sleep 600"), 0.3)
            assert (await ep.exec("echo next")).stdout == "next\n"
            assert time.monotonic() - began < 10
            await ep.delete()

    asyncio.run(main())


def test_output_sessions_runs_and_errors_are_the_same(client: paddock.Client, world: paddock.World) -> None:
    async def main() -> None:
        async with await aio.run("aio-run", socket=client.socket) as run:
            with pytest.raises(paddock.NotFound):
                await run.episode("none")
            async with await run.create(world, "a") as ep:
                stream = await ep.stream("echo 1; exit 2")
                assert [c.text async for c in stream] == ["1\n"]
                assert (await stream.result()).exit_code == 2
                async with await ep.session() as shell:
                    assert (await shell.run("echo $((1+1))")).stdout == "2\n"
                await ep.finish()
                await ep.exec("true")
                pytest.fail("the episode has ended")
            assert ep.end == paddock.End("ok", "agent")
            assert [e.id async for e in run.episodes()] == ["a"]

    asyncio.run(main())


def test_the_loop_is_not_held_up_by_a_call(client: paddock.Client, world: paddock.World) -> None:
    async def main() -> int:
        ticks = 0
        async with await aio.connect(client.socket) as c, await c.create(world) as ep:
            call = asyncio.create_task(ep.exec("sleep 0.5"))
            while not call.done():
                await asyncio.sleep(0.01)
                ticks += 1
            await ep.finish()
        return ticks

    assert asyncio.run(main()) > 10
