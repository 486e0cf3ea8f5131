"""OpenEnv's own client steps a world and an app over WebSocket, as it steps any of its servers."""

import sys

from openenv.core import GenericEnvClient


def main(base: str) -> None:
    with GenericEnvClient(base_url=f"{base}/worlds/game").sync() as env:
        assert "exec" in [t["name"] for t in env.reset(seed=7).observation["tools"]]
        out = env.step({"command": "echo $PADDOCK_SEED >/tmp/seed; cat /tmp/seed"})
        assert out.observation["stdout"] == "7\n" and not out.done, out
        out = env.step({"type": "call_tool", "tool_name": "exec", "arguments": {"argv": ["cat", "/tmp/seed"]}})
        assert out.observation["stdout"] == "7\n" and env.state()["step_count"] == 2, out
        out = env.step({"answer": 7})
        assert out.done and out.metadata["status"] == "ok", out
        assert env.reset(seed=8).done is False
        assert env.step({"command": "cat /tmp/seed"}).observation["exit_code"] == 1, "a reset is another episode"
    with GenericEnvClient(base_url=f"{base}/apps/game").sync() as env:
        env.reset()
        env.step({"method": "POST", "path": "/start", "json": {"seed": 3}})
        low, high, done, steps = 1, 100, False, 0
        while not done:
            guess, steps = (low + high) // 2, steps + 1
            out = env.step({"method": "POST", "path": "/guess", "json": {"guess": guess}})
            word, done = out.observation["json"]["word"], out.done
            low, high = (guess + 1, high) if word == "higher" else (low, guess - 1)
        assert out.reward == 1.0 and out.observation["json"]["guesses"] == steps, out
    print(f"OpenEnv's client: a world by its tools, and the game in {steps} steps")


main(sys.argv[1])
