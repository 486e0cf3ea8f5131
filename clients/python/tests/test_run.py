from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable

import pytest
from conftest import Daemon

import paddock

Name = Callable[[], str]


def test_a_second_driver_fences_the_first(
    client: paddock.Client, world: paddock.World, fresh_name: Name
) -> None:
    name = fresh_name()
    first = client.run(name, seed=3)
    ep = first.create(world, "a")
    with pytest.raises(paddock.BadRequest) as known:
        client.run(name)
    assert known.value.kind == "run_exists"
    second = client.run(name, resume="auto")
    assert (second.seed, second.generation) == (3, first.generation + 1)
    with pytest.raises(paddock.Fenced):
        first.create(world, "b")
    with pytest.raises(paddock.Fenced):
        ep.exec("true")
    with pytest.raises(paddock.Fenced):
        ep.finish()
    attached = second.create(world, "a")
    assert attached.kept
    assert attached.exec("true").ok
    assert pickle.loads(pickle.dumps(second)).episode("a").id == "a"
    assert second.cancel("a", "done") == 1


def test_an_id_made_by_other_weights_is_a_conflict(
    client: paddock.Client, world: paddock.World, fresh_name: Name
) -> None:
    run = client.run(fresh_name())
    with run.create(world, "it1/t/s0", weights="v2") as ep:
        ep.finish(payload=b"p")
    with pytest.raises(paddock.SpecConflict) as e:
        run.create(world, "it1/t/s0", weights="v1")
    (difference,) = e.value.pointers
    assert (difference.pointer, difference.old, difference.new) == ("/weights", "v2", "v1")
    kept = run.create(world, "it1/t/s0", weights="v2")
    assert (kept.kept, kept.payload()) == (True, b"p")
    assert [i.id for i in run.episodes("it1/")] == ["it1/t/s0"]


def test_a_retry_supersedes_the_first_attempt(
    client: paddock.Client, world: paddock.World, fresh_name: Name
) -> None:
    run = client.run(fresh_name())
    first = run.create(world, "e", retries=1)
    first.exec("echo old > /tmp/old")
    first.abort("the model was away")
    second = run.create(world, "e", retries=1)
    assert (second.attempt, second.sample_seed) == (2, first.sample_seed)
    assert not second.read("/tmp/old").ok, "nothing of the first attempt is there"
    with pytest.raises(paddock.Superseded):
        first.exec("true")
    second.abort("again")
    with pytest.raises(paddock.BadRequest) as e:
        run.create(world, "e", retries=1)
    assert e.value.kind == "attempts_exhausted"
    assert [o.cause for o in e.value.outcomes] == ["client", "client"]


def test_a_killed_daemon_is_a_typed_error_and_the_run_goes_on() -> None:
    daemon = Daemon()
    try:
        client = paddock.connect(daemon.socket)
        world = client.worlds.build(busybox=True)
        run = client.run("r")
        with run.create(world, "done") as done:
            done.finish(payload=b"kept")
        live = run.create(world, "live", retries=1)
        raised: list[BaseException] = []
        begun = threading.Event()

        def call() -> None:
            try:
                for _ in live.stream("echo begun; sleep 600"):
                    begun.set()
            except BaseException as e:
                raised.append(e)

        thread = threading.Thread(target=call)
        thread.start()
        assert begun.wait(10)
        daemon.kill()
        killed = time.monotonic()
        thread.join(10)
        assert time.monotonic() - killed < 2
        assert isinstance(raised[0], paddock.Unavailable)
        with pytest.raises(paddock.Unavailable):
            run.create(world, "more")

        daemon.start()
        again = client.run("r", resume="resume")
        assert again.create(world, "done").payload() == b"kept"
        retried = again.create(world, "live", retries=1)
        assert retried.attempt == 2
        first = retried.info.attempts[0].end
        assert first is not None
        assert (first.status, first.cause) == ("interrupted", "platform")
        assert retried.exec("true").ok
    finally:
        daemon.close()
