"""Many rollouts play a served game, whose state is kept between calls; meanwhile it is updated.

Each rollout has a session, which one of the app's replicas serves. The update replaces the
replicas one after another while games are open; none of them is dropped. Last, an agent in a
sandbox without any network plays through an endpoint.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import paddock
from paddock import app

COMMAND = ["python3", "/game/server.py"]


def rollout(game: app.App, seed: int, wait: threading.Event | None = None) -> int:
    with game.session() as s:
        span = s.post("/start", json={"seed": seed}).json()
        low, high = span["from"], span["to"]
        while True:
            guess = (low + high) // 2
            said = s.post("/guess", json={"guess": guess}).json()
            if said["done"]:
                return int(said["guesses"])
            low, high = (guess + 1, high) if said["word"] == "higher" else (low, guess - 1)
            if wait is not None and said["guesses"] == 2:
                wait.wait(60)  # the game stays open while the app is updated


def main() -> None:
    client = paddock.connect()
    game = app.deploy(client, "game", "game", port=8000, command=COMMAND, replicas=3, drain_s=60)
    with ThreadPoolExecutor(40) as pool:
        guesses = list(pool.map(lambda seed: rollout(game, seed), range(40)))
    print(f"40 rollouts on {len(game.show()['replicas'])} replicas: {sum(guesses) / 40:.1f} guesses each")
    assert max(guesses) <= 7, "a binary search of a hundred numbers takes at most seven guesses"

    updated = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        games = [pool.submit(rollout, game, seed, updated) for seed in range(8)]
        time.sleep(0.5)
        game.update(env={"VERSION": "2"})
        while not any(r["revision"] == 2 and r["state"] == "ready" for r in game.show()["replicas"]):
            time.sleep(0.1)
        updated.set()
        assert [g.result() for g in games] == guesses[:8], "games that were open end as they would have"
    while game.show()["state"] != "running":
        time.sleep(0.1)
    with game.session() as s:
        assert s.get("/").json()["version"] == "2"
    print("updated to another revision while 8 games were open; each went on to its end")

    with client.create("game", endpoints={"game": {"target": "app:game"}}) as ep:
        script = """
import json, os, urllib.request as r
def post(path, value):
    q = r.Request(os.environ["PADDOCK_ENDPOINT_GAME"] + path, json.dumps(value).encode())
    return json.load(r.urlopen(q))
span = post("/start", {"seed": 1})
low, high = span["from"], span["to"]
while True:
    guess = (low + high) // 2
    said = post("/guess", {"guess": guess})
    if said["done"]:
        break
    low, high = (guess + 1, high) if said["word"] == "higher" else (low, guess - 1)
print(said["guesses"])
"""
        out = ep.exec(["python3", "-c", script])
        assert out.stdout.strip() == str(guesses[1]), out
        ep.finish(answer=int(out.stdout))
    print(f"an agent without a network took {out.stdout.strip()} guesses, through an endpoint")


main()
