"""Served apps, on the world box."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import paddock
from paddock import app

SERVE = """mkdir -p /tmp/w/cgi-bin
cat >/tmp/w/cgi-bin/count <<'END'
#!/bin/sh
echo
echo x >>/tmp/$HTTP_PADDOCK_SESSION
wc -l </tmp/$HTTP_PADDOCK_SESSION
cat
END
chmod +x /tmp/w/cgi-bin/count
exec httpd -f -p 127.0.0.1:$PORT -h /tmp/w"""


@pytest.fixture
def counter(client: paddock.Client, world: paddock.World, fresh_name: Callable[[], str]) -> Iterator[app.App]:
    one = app.deploy(client, fresh_name(), world, port=8000, command=["sh", "-c", SERVE], replicas=2)
    yield one
    one.remove()


def test_a_session_keeps_its_state(counter: app.App) -> None:
    with counter.session() as a, counter.session() as b:
        assert [a.get("/cgi-bin/count").text.strip() for _ in range(3)] == ["1", "2", "3"]
        assert b.post("/cgi-bin/count", json={"x": 1}).text == '1\n{"x":1}'
        assert counter.show()["sessions"] == 2
        assert a.get("/none").status == 404  # the app's own word raises nothing
    assert counter.show()["sessions"] == 0
    with pytest.raises(paddock.SessionLost):
        a.get("/cgi-bin/count")


def test_deploying_again_updating_and_removing(
    client: paddock.Client, world: paddock.World, counter: app.App
) -> None:
    again = app.deploy(client, counter.name, world, port=8000, command=["sh", "-c", SERVE], replicas=2)
    assert again.url == counter.url
    assert again.show()["revision"] == 1
    with pytest.raises(paddock.SpecConflict):
        app.deploy(client, counter.name, world, port=8001, command=["true"])
    assert counter.update(env={"A": "b"})["revision"] == 2
    assert counter.scale(1)["wanted"] == 1
    assert counter.name in [a["name"] for a in app.apps(client)]
    with pytest.raises(paddock.NotFound):
        app.App(client, "none").show()


def test_an_episode_reaches_an_app(client: paddock.Client, world: paddock.World, counter: app.App) -> None:
    with client.create(world, endpoints={"shop": {"target": f"app:{counter.name}"}}) as ep:
        out = [ep.exec("wget -qO- $PADDOCK_ENDPOINT_SHOP/cgi-bin/count").stdout.strip() for _ in range(2)]
        assert out == ["1", "2"]
