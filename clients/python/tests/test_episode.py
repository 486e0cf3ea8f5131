from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from typing import Any

import pytest

import paddock
from paddock._blocking import done


def test_exec_gives_text_bytes_and_the_exit_code(ep: paddock.Episode) -> None:
    r = ep.exec("echo out; echo err >&2; exit 3")
    assert (r.exit_code, r.stdout, r.stderr, r.ok) == (3, "out\n", "err\n", False)
    r = ep.exec(["printf", r"a\377"], env={"A": "b"}, cwd="/tmp")
    assert r.stdout_raw == b"a\xff"
    assert r.stdout == "a\ufffd"
    assert r.ok


@pytest.mark.parametrize("size", [0, 10, 1 << 20], ids=["none", "in JSON", "raw"])
def test_stdin_is_bytes_of_any_size(ep: paddock.Episode, size: int) -> None:
    data = os.urandom(size)
    assert ep.exec(["wc", "-c"], stdin=data).stdout.strip() == str(size)


@pytest.mark.parametrize(
    ("command", "options", "shows"),
    [
        ("exit 7", {}, lambda r: r.exit_code == 7),
        ("kill -9 $$", {}, lambda r: r.exit_code is None and r.signal == 9),
        ("sleep 60", {"timeout": 0.2}, lambda r: r.exit_code is None and r.timed_out),
        (["no-such-program"], {}, lambda r: r.exit_code is None and r.fault.kind == "command_not_found"),
        ("true", {"cwd": "/none"}, lambda r: r.exit_code is None and r.fault.kind == "cwd_not_found"),
        (
            "yes | head -c 100000",
            {"max_stdout": 1000},
            lambda r: r.stdout_dropped > 0 and "left out" in r.text,
        ),
    ],
)
def test_what_the_agent_does_wrong_is_a_value(
    ep: paddock.Episode, command: Any, options: dict[str, Any], shows: Callable[[Any], bool]
) -> None:
    r = ep.exec(command, **options)
    assert shows(r), r
    assert r.end is None


def test_a_tool_that_the_model_made_up_is_a_value(ep: paddock.Episode) -> None:
    r = ep.tool("teleport", {"to": "moon"})
    assert not r.ok
    assert r.fault is not None
    assert r.fault.kind == "unknown_tool"
    assert "teleport" in r.text


@pytest.mark.parametrize(
    ("name", "args", "kind"),
    [
        ("exec", {}, "invalid_arguments"),
        ("exec", {"shell": 5}, "invalid_arguments"),
        ("exec", {"command": "ls"}, "invalid_arguments"),
        ("read_file", {"path": "/none"}, "not_found"),
        ("read_file", {"file": "/tmp"}, "invalid_arguments"),
        ("write_file", {"path": ["/tmp"]}, "invalid_arguments"),
        ("write_file", {"path": "/tmp/x", "content": "\ud83d"}, "invalid_arguments"),
        ("exec", {"shell": "echo \ud83d"}, "invalid_arguments"),
        ("exec", ["ls"], "invalid_arguments"),
        ("exec", "ls", "invalid_arguments"),
    ],
)
def test_arguments_that_the_model_made_up_are_a_value(
    ep: paddock.Episode, name: str, args: Any, kind: str
) -> None:
    r = ep.tool(name, args)
    assert (r.ok, r.fault and r.fault.kind) == (False, kind)
    assert ep.tool("exec", {"argv": ["echo", "on"]}).stdout == "on\n"


_DEEP: list[Any] = []
for _ in range(80):
    _DEEP = [_DEEP]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("half \ud83d, whole \ud83d\ude00", "half \ufffd, whole \U0001f600"),
        (float("nan"), None),
        ({"a": [float("inf")]}, None),
        (10**5000, None),
        ({1: 2, "1": 3}, None),
        ({"a": "\ud83d"}, None),
        (_DEEP, None),
        ("x" * (17 << 20), None),
    ],
    ids=["text", "nan", "inf", "digits", "twice", "half", "deep", "long"],
)
def test_an_answer_that_json_cannot_carry_voids_nothing(
    client: paddock.Client, world: paddock.World, answer: Any, kept: Any
) -> None:
    with client.create(world) as ep:
        info = ep.finish(answer=answer, payload=b"p")
    assert info.end is not None
    assert (info.end.status, info.end.cause, info.attempts[-1].answer) == ("ok", "agent", kept)
    assert ep.payload() == b"p"


def test_tools_that_every_world_has(ep: paddock.Episode) -> None:
    assert ep.tool("write_file", {"path": "/tmp/a", "content": "text"}).ok
    assert ep.tool("read_file", {"path": "/tmp/a"}).text == "text"
    assert ep.tool("exec", {"shell": "cat /tmp/a", "cwd": "/tmp"}, weights="v1").stdout == "text"


def test_a_tool_of_the_spec_gets_its_arguments(client: paddock.Client, world: paddock.World) -> None:
    with client.create(world, tools=[paddock.Tool("echo", ("cat",))]) as ep:
        assert ep.tool("echo", {"x": [1]}).stdout == '{"x":[1]}'
        ep.finish()


def test_output_comes_as_it_is_written(ep: paddock.Episode) -> None:
    with ep.stream("echo one; sleep 0.3; echo two >&2; cat", stdin="three") as stream:
        chunks = list(stream)
    assert (chunks[0].stream, chunks[0].data) == ("stdout", b"one\n")
    # The order between the two is the kernel's.
    assert b"".join(c.data for c in chunks if c.stream == "stdout") == b"one\nthree"
    assert b"".join(c.data for c in chunks if c.stream == "stderr") == b"two\n"
    assert stream.result.exit_code == 0


def test_a_stream_that_is_left_ends_its_call(ep: paddock.Episode) -> None:
    with ep.stream("echo begun; sleep 600") as stream:
        assert next(iter(stream)).text == "begun\n"
    assert ep.exec("echo next").stdout == "next\n"
    with pytest.raises(paddock.Unavailable):
        _ = stream.result


def test_files_are_written_read_listed_and_their_faults_are_values(ep: paddock.Episode) -> None:
    big = os.urandom(300_000)
    assert ep.write("/tmp/big", big, mode=0o600).ok
    assert ep.read("/tmp/big").data == big
    assert ep.read("/tmp/big", offset=10, max=5).data == big[10:15]
    (entry,) = ep.list("/tmp").entries
    assert (entry.name, entry.type, entry.size, entry.mode & 0o777) == ("big", "file", 300_000, 0o600)
    assert ep.stat("/tmp/big").info is not None
    assert ep.remove("/tmp/big").ok
    for r in (ep.read("/tmp/big"), ep.stat("/tmp/big"), ep.write("/none/x", "")):
        assert not r.ok
        assert r.fault is not None
        assert r.fault.kind == "not_found"


def test_tars_go_in_and_come_out(ep: paddock.Episode) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        info = tarfile.TarInfo("d/f")
        info.size = 3
        t.addfile(info, io.BytesIO(b"abc"))
    assert ep.upload(out.getvalue(), "/tmp").count >= 1
    assert ep.upload(io.BytesIO(out.getvalue()), "/root").ok
    got = ep.download("/tmp/d")
    assert got is not None
    with tarfile.open(fileobj=io.BytesIO(got)) as t:
        assert any(n.endswith("f") for n in t.getnames())
    to = io.BytesIO()
    assert ep.download("/root", to) == b""
    assert len(to.getvalue()) > 0
    assert ep.download("/none") is None


def test_a_session_keeps_its_directory_and_variables(ep: paddock.Episode) -> None:
    with ep.session() as shell:
        assert shell.run("cd /tmp; X=5").ok
        assert shell.run('echo "$PWD $X"').stdout == "/tmp 5\n"
        assert shell.run("exit_code() { return 4; }; exit_code").exit_code == 4


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00\xff", b"paddock-json/1\nno", [(1, 2.5), {"a": b"x"}, {1: float("inf"), "$b": None}]],
)
def test_finish_keeps_answer_and_payload(client: paddock.Client, world: paddock.World, payload: Any) -> None:
    with client.create(world) as ep:
        ep.write("/tmp/a", "1")
        info = ep.finish(answer={"n": 42}, payload=payload)
    assert (info.end, info.last and info.last.answer) == (paddock.End("ok", "agent"), {"n": 42})
    assert ep.payload() == payload
    assert [(c.path, c.kind) for c in ep.changes().changes] == [("/tmp/a", "created")]
    assert [c["call"]["tool"] for c in ep.trajectory()] == ["write_file"]
    assert ep.last is not None
    assert ep.last.digests.state
    ep.delete()
    with pytest.raises(paddock.NotFound):
        ep.refresh()


def test_an_answer_too_large_for_a_header_goes_with_the_payload(
    client: paddock.Client, world: paddock.World
) -> None:
    with client.create(world) as ep:
        ep.finish(answer="x" * 100_000, payload=b"p")
    assert ep.payload() == b"p"


def test_an_ended_episode_raises_and_leaving_its_block_is_normal(
    client: paddock.Client, world: paddock.World, verdict: paddock.Grader
) -> None:
    with client.create(world, limits={"calls": 1}, graders=[verdict]) as ep:
        ep.exec("echo yes > /tmp/answer")
        ep.exec("echo no > /tmp/answer")
        ep.exec("true")
        pytest.fail("the second call ends the episode")
    assert ep.end is not None
    assert (ep.end.status, ep.end.cause) == ("limit", "agent")
    assert ep.valid, "an end by the agent is scored"
    with pytest.raises(paddock.EpisodeEnded) as e:
        ep.exec("true")
    assert e.value.outcome is not None
    assert e.value.outcome.status == "limit"


def test_a_rollout_that_raises_is_the_clients_end(client: paddock.Client, world: paddock.World) -> None:
    with pytest.raises(ZeroDivisionError), client.create(world) as ep:
        _ = 1 / 0
    end = ep.refresh().end
    assert end is not None
    assert (end.status, end.cause, end.step) == ("error", "client", "rollout")
    assert "ZeroDivisionError" in end.reason
    assert ep.reward is None


def test_a_block_left_without_finish_makes_no_reward(
    client: paddock.Client, world: paddock.World, verdict: paddock.Grader
) -> None:
    with client.create(world, graders=[verdict]) as ep:
        ep.exec("echo yes > /tmp/answer")
    assert ep.end is not None
    assert (ep.end.cause, ep.end.reason, ep.reward) == ("client", "left without finish", None)


def test_scores_and_client_rewards(
    client: paddock.Client, world: paddock.World, verdict: paddock.Grader
) -> None:
    with client.create(world, graders=[verdict]) as ep:
        ep.exec("echo no > /tmp/answer")
        assert ep.finish().reward == 0.0
    fair = client.grader(["sh", "-c", 'echo "{\\"reward\\": 0.5}" >&3'], {"x": b""})
    assert ep.score(fair).last is not None
    assert any(s.reward == 0.5 for s in (ep.last.scores if ep.last else ()))
    with client.create(world) as other:
        other.finish()
    info = other.write_reward("mine", 0.25, metrics={"turns": 3})
    assert (info.reward, info.valid) == (0.25, True)
    assert info.last is not None
    assert (info.last.scores[0].source, info.last.scores[0].metrics) == ("client", {"turns": 3})


def test_forks_go_on_from_the_files_and_part(client: paddock.Client, world: paddock.World) -> None:
    with client.create(world) as ep:
        ep.write("/tmp/a", "before")
        forks = ep.fork(2)
        assert [f.id for f in forks] == [f"{ep.id}.f0", f"{ep.id}.f1"]
        assert forks[0].sample_seed != forks[1].sample_seed
        for f in forks:
            assert f.read("/tmp/a").text == "before"
            f.write("/tmp/a", f.id)
            f.finish()
        assert ep.read("/tmp/a").text == "before"
        ep.finish()


def test_pause_stops_and_resume_goes_on(ep: paddock.Episode) -> None:
    assert ep.pause().state == "paused"
    assert ep.resume().state == "live"
    assert ep.exec("true").ok


def test_a_numbered_call_asked_again_is_not_done_again(ep: paddock.Episode) -> None:
    first = ep.exec("echo x >> /tmp/n; wc -l < /tmp/n", seq=7)
    again = ep.exec("echo x >> /tmp/n; wc -l < /tmp/n", seq=7)
    assert (again.stdout, again.kept) == (first.stdout, True)
    with pytest.raises(paddock.CallConflict):
        ep.exec("echo other", seq=7)


def test_a_handle_can_be_pickled(ep: paddock.Episode) -> None:
    other = pickle.loads(pickle.dumps(ep))
    assert other.exec("echo same").stdout == "same\n"
    error = pickle.loads(
        pickle.dumps(paddock.EpisodeEnded("episode_ended", outcome=paddock.End("ok", "agent")))
    )
    assert error.outcome == paddock.End("ok", "agent")


def test_the_lease_is_the_processs_and_a_fork_has_its_own(ep: paddock.Episode) -> None:
    assert ep.refresh().lease.kind == "connection"
    mine = done(ep._core._scope.transport.lease())
    assert done(ep._core._scope.transport.lease()) == mine
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "failed"
        try:
            text = done(ep._core._scope.transport.lease()) + " " + ep.exec("echo child").stdout
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        theirs, said = f.read().split()
    os.waitpid(pid, 0)
    assert said == "child"
    assert theirs != mine
    assert done(ep._core._scope.transport.lease()) == mine
    assert ep.exec("true").ok


def test_a_ttl_lease_when_asked(client: paddock.Client, world: paddock.World) -> None:
    with client.create(world, ttl=600) as ep:
        assert ep.info.lease.kind == "ttl"
        assert ep.keepalive().lease.deadline is not None


def numbers(ep: paddock.Episode) -> list[int]:
    return [call["seq"] for call in ep.trajectory()]


def test_calls_are_numbered_by_the_handle_that_made_the_attempt(
    client: paddock.Client, world: paddock.World
) -> None:
    with client.create(world) as ep:
        ep.exec("true")
        ep.upload(b"", "/tmp")
        with ep.stream("true"):
            pass
        ep.download("/etc")
        with ep.session() as shell:
            shell.run("true")
        ep.finish()
    assert numbers(ep) == sorted(set(numbers(ep)))
    assert len(numbers(ep)) == 7


def test_several_handles_of_one_episode_do_not_take_each_others_answers(
    client: paddock.Client, world: paddock.World
) -> None:
    with client.create(world) as ep:
        other = pickle.loads(pickle.dumps(ep))
        attached = client.episode(ep.id)
        for handle in (other, ep, attached, ep, other, ep):
            r = handle.exec("echo x >> /tmp/n; wc -l < /tmp/n")
            assert not r.kept
        assert r.stdout.strip() == "6", "each call was made"
        ep.finish()
    assert len(numbers(ep)) == 6


def test_a_call_whose_connection_breaks_off_is_made_once(
    client: paddock.Client, world: paddock.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.create(world) as ep:
        transport = ep._core.transport
        once = transport.once
        broken: list[Any] = []

        async def breaks(*args: Any) -> Any:
            answer = await once(*args)
            if args[1].endswith("/calls") and not broken:
                broken.append(args)
                answer.close()
                raise paddock.Unavailable("connection_lost", "cut")
            return answer

        monkeypatch.setattr(transport, "once", breaks)
        r = ep.exec("echo x >> /tmp/n; wc -l < /tmp/n")
        assert broken
        assert (r.stdout.strip(), r.kept) == ("1", True)
        ep.finish()
