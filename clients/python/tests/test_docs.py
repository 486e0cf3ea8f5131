"""What the documents say is run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from conftest import REPO, Daemon

import paddock

PACKAGE = REPO / "clients" / "python"


def recipes(path: Path) -> list[tuple[str, str, dict[str, str]]]:
    """A document's Python blocks: title, code, and the files that follow it.

    A block whose first line names a file beside the language is such a file.
    """
    found: list[tuple[str, str, dict[str, str]]] = []
    title, code, file = "", None, ""
    for line in path.read_text().splitlines(keepends=True):
        if code is None and line.startswith("## "):
            title = line[3:].strip()
        elif code is None and (opened := re.fullmatch(r"```(?:python|sh)(?: (\S+))?\n", line)):
            code, file = "", opened[1] or ""
        elif code is not None and line == "```\n":
            if file:
                found[-1][2][file] = code
            elif "import paddock" in code:
                found.append((title, code, {}))
            code = None
        elif code is not None:
            code += line
    return found


@pytest.mark.parametrize(
    ("code", "files"),
    [pytest.param(code, files, id=title) for title, code, files in recipes(REPO / "docs" / "python.md")],
)
def test_recipe(
    code: str, files: dict[str, str], daemon: Daemon, world: paddock.World, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={
            "PADDOCK_SOCKET": daemon.socket,
            "PYTHONPATH": f"{PACKAGE / 'src'}:{tmp_path}",
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_the_wheel_installs_alone_and_its_quick_start_runs(daemon: Daemon, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=PACKAGE, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("paddock_rl-*.whl")
    venv.create(tmp_path / "empty", with_pip=False, symlinks=True)
    python = tmp_path / "empty" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "--no-index", wheel], check=True)
    ((_, code, _),) = recipes(PACKAGE / "README.md")
    done = subprocess.run(
        [python, "-c", code],
        cwd=tmp_path,
        env={"PADDOCK_SOCKET": daemon.socket},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "hello\nok by agent\n"), done.stderr
    typed = subprocess.run(
        [python, "-c", "import paddock,os;print(os.listdir(paddock.__path__[0]))"],
        capture_output=True,
        text=True,
    )
    assert "py.typed" in typed.stdout
