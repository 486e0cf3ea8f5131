"""A game of guessing a number, with the state of each session in this process's memory."""

import json
import os
import random
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

games: dict[str, dict[str, int]] = {}


class Game(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(200, {"version": os.environ.get("VERSION", "1"), "games": len(games)})

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        session = self.headers.get("Paddock-Session", "")
        if self.path == "/start":
            games[session] = {"number": random.Random(said.get("seed", 0)).randint(1, 100), "guesses": 0}
            self.answer(200, {"from": 1, "to": 100})
            return
        game = games.get(session)
        if game is None:
            self.answer(409, {"error": "no game has been started"})
            return
        game["guesses"] += 1
        number, guess = game["number"], said["guess"]
        word = "right" if guess == number else "higher" if guess < number else "lower"
        self.answer(200, {"word": word, "guesses": game["guesses"], "reward": float(guess == number), "done": guess == number})

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


print("the game is served", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Game).serve_forever()
