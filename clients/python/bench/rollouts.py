#!/usr/bin/env python3
"""What the client costs: many rollouts in one event loop, one call beside a raw request, and
a loop that is blocked for a minute.

    python bench/rollouts.py [--socket S] [--rollouts 200] [--calls 10] [--blocked 60]

Prints JSON; times are milliseconds. Without --socket it starts a daemon, as root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import time
from typing import Any

import paddock
from paddock import aio

SMALL: dict[str, Any] = {
    "limits": {"memory": "16MiB", "disk": "4MiB"},
    "requests": {"cpus": 0.01, "memory": "4MiB"},
}


class Watch:
    """How long the event loop is away.

    ``lag`` is by the clock. On a host that has more to do than CPUs most of it is spent
    waiting for one (the kernel counts that); ``own`` is the rest, the client's own doing.
    ``busy`` is the longest that one callback kept this thread's CPU.
    """

    def __init__(self) -> None:
        self.lag = self.own = self.busy = 0.0
        self._task: asyncio.Task[None] | None = None
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def _waited(self) -> float:
        """Seconds that this thread was ready and had no CPU."""
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9

    async def _beat(self) -> None:
        while True:
            began, waited = time.perf_counter(), self._waited()
            await asyncio.sleep(0.001)
            lag = time.perf_counter() - began - 0.001
            self.lag = max(self.lag, lag)
            self.own = max(self.own, lag - (self._waited() - waited))

    def __enter__(self) -> Watch:
        self._run = asyncio.Handle._run
        plain = self._run

        def run(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            plain(handle)
            self.busy = max(self.busy, time.thread_time() - began)

        asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
        self._task = asyncio.create_task(self._beat())
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        if self._task is not None:
            self._task.cancel()


def ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


async def rollouts(client: aio.Client, world: paddock.World, n: int, calls: int) -> dict[str, Any]:
    """n rollouts at once; each result is looked at."""
    took: list[float] = []

    async def one(i: int) -> int:
        right = 0
        ep = await client.create(world, **SMALL)
        for j in range(calls):
            began = time.perf_counter()
            r = await ep.exec(f"echo {i} {j}")
            took.append(time.perf_counter() - began)
            right += r.stdout == f"{i} {j}\n"
        await ep.finish(payload=[i])
        return right

    began = time.perf_counter()
    with Watch() as watch:
        right = sum(await asyncio.gather(*(one(i) for i in range(n))))
    return {
        "rollouts": n,
        "calls": n * calls,
        "right": right,
        "seconds": round(time.perf_counter() - began, 1),
        "call_median": ms(statistics.median(took)),
        "loop_longest_callback_cpu": ms(watch.busy),
        "loop_longest_lag": ms(watch.lag),
        "loop_longest_lag_without_wait_for_cpu": ms(watch.own),
    }


class Raw:
    """A request on the socket and nothing else: the bytes are made beforehand."""

    def __init__(self, path: str, url: str, body: bytes) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(path)
        head = f"POST {url} HTTP/1.1\r\nHost: paddock\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def __call__(self) -> None:
        self._sock.sendall(self._request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._sock.recv(1 << 16)
        head, _, rest = answer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(rest) < length:
            rest += self._sock.recv(1 << 16)


async def overhead(client: aio.Client, sync: paddock.Client, world: paddock.World, n: int) -> dict[str, Any]:
    """One cheap call, raw and through both faces, in turn."""
    ep = await client.create(world)
    other = sync.episode(ep.id)
    body = json.dumps({"tool": "stat", "path": "/etc"}).encode()
    raw = Raw(client.socket, f"/v1/runs/default/episodes/{ep.id}/calls", body)
    took: dict[str, list[float]] = {"raw": [], "sync": [], "asyncio": []}

    def timed(name: str, began: float) -> None:
        took[name].append(time.perf_counter() - began)

    for _ in range(n):
        began = time.perf_counter()
        raw()
        timed("raw", began)
        began = time.perf_counter()
        other.stat("/etc")
        timed("sync", began)
        began = time.perf_counter()
        await ep.stat("/etc")
        timed("asyncio", began)
    await ep.delete()
    median = {name: statistics.median(t) for name, t in took.items()}
    return {
        "calls": n,
        **{f"{name}_median": ms(m) for name, m in median.items()},
        "sync_overhead_median": ms(median["sync"] - median["raw"]),
        "asyncio_overhead_median": ms(median["asyncio"] - median["raw"]),
    }


async def blocked(client: aio.Client, world: paddock.World, n: int, seconds: float) -> dict[str, Any]:
    """Live episodes, a loop that does nothing for a while, then their next calls."""
    episodes = await asyncio.gather(*(client.create(world, **SMALL) for _ in range(n)))
    time.sleep(seconds)  # noqa: ASYNC251 # that is what is measured

    async def goes_on(ep: aio.Episode) -> bool:
        right = (await ep.exec("echo on")).stdout == "on\n"
        return right and (await ep.finish()).end == paddock.End("ok", "agent")

    return {"seconds": seconds, "episodes": n, "lost": n - sum(await asyncio.gather(*map(goes_on, episodes)))}


async def main(o: argparse.Namespace) -> dict[str, Any]:
    sync = paddock.connect(o.socket) if o.socket else paddock.local()
    world = sync.worlds.build(busybox=True).world
    async with await aio.connect(sync.socket) as client:
        await rollouts(client, world, 4, 2)  # warm
        return {
            "host": {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()},
            "overhead": await overhead(client, sync, world, o.samples),
            "rollouts": await rollouts(client, world, o.rollouts, o.calls),
            "blocked": await blocked(client, world, 50, o.blocked),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--socket")
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--blocked", type=float, default=60.0, help="seconds")
    print(json.dumps(asyncio.run(main(parser.parse_args())), indent=1))
