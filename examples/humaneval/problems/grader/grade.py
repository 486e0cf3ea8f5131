"""Grades one HumanEval solution. Runs in a fresh fork that the agent never touched.

The solution never runs in the process that decides. The tests run here; the function
they test is a stand-in that sends its arguments to a child process, which has loaded
the solution, and reads the result back as a Python literal. So there is nothing in the
child that could be forged: ending early, replacing `assert`, or returning an object that
equals everything all come out as "not the value that the test wants".
"""

import ast
import ctypes
import json
import os
import signal
import subprocess
import sys

SOLUTION = "/workdir/solution.py"
SECONDS = 20
LONGEST_REPLY = 1 << 20
PR_SET_DUMPABLE = 4


def take_verdict_channel():
    """Keeps the verdict's descriptor to this process: dup'ed descriptors are not
    inherited in Python, and a process that is not dumpable has a /proc/PID/fd and a
    memory that another process of the same user may not open."""
    given = int(os.environ.pop("PADDOCK_VERDICT_FD"))
    mine = os.dup(given)
    os.close(given)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    return os.fdopen(mine, "w")


def problem_of(task):
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "problems.jsonl")) as lines:
        for line in lines:
            problem = json.loads(line)
            if problem["task_id"] == task:
                return problem
    raise SystemExit(f"no problem {task!r}")


class WrongAnswer(Exception):
    pass


def stand_in(child):
    """A function that is computed in the child."""

    def candidate(*args):
        try:
            child.stdin.write(repr(args) + "\n")
            child.stdin.flush()
            reply = child.stdout.readline(LONGEST_REPLY)
        except OSError as error:
            raise WrongAnswer(f"the solution's process is gone: {error}") from None
        if not reply.endswith("\n"):
            raise WrongAnswer("the solution's process ended, or its reply is too long")
        try:
            return ast.literal_eval(reply)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise WrongAnswer(f"not a plain value: {error}") from None

    return candidate


def out_of_time(*_):
    raise WrongAnswer(f"not done in {SECONDS} s")


def passes(problem):
    """The tests' answer: None when they pass, else why not."""
    here = os.path.dirname(os.path.abspath(__file__))
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", os.path.join(here, "child.py"), SOLUTION, problem["entry_point"]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(SECONDS)
    try:
        # The prompt is part of the data set: some tests use its helper functions, and
        # that of problem 33 calls the function by its name.
        names = {}
        exec(problem["prompt"] + "\n" + problem["test"], names)
        names[problem["entry_point"]] = stand_in(child)
        names["check"](names[problem["entry_point"]])
    except WrongAnswer as error:
        return str(error)
    except Exception as error:  # AssertionError, or a wrong type met by the test's own code
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        child.kill()
    return None


def main():
    verdict = take_verdict_channel()
    with open(os.path.join(os.environ["PADDOCK_INPUTS"], "spec.json")) as spec:
        problem = problem_of(json.load(spec)["task"])
    failure = passes(problem)
    json.dump({"reward": float(failure is None), "reason": (failure or "all tests pass")[:500]}, verdict)
    verdict.close()


main()
