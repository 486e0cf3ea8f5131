"""Runs an assertion on main.py and tells on descriptor 3 that it came to its end."""
# Without json and importlib, whose imports cost as much as the start of Python.
import os
import sys

sys.path[0] = os.getcwd()
with open(os.environ["PADDOCK_HARNESS"] + ".text", encoding="utf-8", newline="") as f:
    assertion = f.read()
told, write = os.dup(3), os.write
os.close(3)
import main  # noqa: E402

exec(compile(assertion, "assertion", "exec"), vars(main))
write(told, b'"passed"')
