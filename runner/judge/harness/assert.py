"""Runs an assertion on main.py and tells on descriptor 3 that it came to its end."""
import importlib
import json
import os
import sys

sys.path[0] = os.getcwd()
with open(os.environ["PADDOCK_HARNESS"], encoding="utf-8") as f:
    request = json.load(f)
told = os.fdopen(os.dup(3), "w", encoding="utf-8")
os.close(3)
module = importlib.import_module("main")
exec(compile(request["assert"], "assertion", "exec"), vars(module))
json.dump("passed", told)
told.close()
