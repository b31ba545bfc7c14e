"""Completion in real shells, as a person types: the words, the Tab key, and what stands there."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
import threading

import pytest

pytestmark = pytest.mark.thorough

SET_UP = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'eval "$(_SIMREDUCE_COMPLETE=bash_source simreduce)"\n',
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        (
            "bindkey -e; autoload -Uz compinit; compinit -u -D; "
            'eval "$(_SIMREDUCE_COMPLETE=zsh_source simreduce)"\n'
        ),
    ),
}
LINES = {
    "expl": "explain",
    "topo tr": "topo trees",
    "run --faithf": "run --faithful",
    "run dgx1v-r": "run dgx1v-resnet50",
    "bench gb200": "bench gb200-nvl72",
    "topo show dgx-h1": "topo show dgx-h100",
    "bench dgx1v --calibration dgx1p": "bench dgx1v --calibration dgx1p-tf2018",
    "bench dgx1v --algo best_": "bench dgx1v --algo best_ring",
    "bench dgx1v --algo ring,best_": "bench dgx1v --algo ring,best_ring",
    "bench dgx1v --algo nccl:r": "bench dgx1v --algo nccl:ring",
    "run ./mi": "run ./mine.toml",
}
"""What is typed after simreduce, and what Tab makes of it."""


@pytest.fixture
def environment(tmp_path):
    """One in which `simreduce` is this one, in a folder with a scenario."""
    script = tmp_path / "bin" / "simreduce"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom simreduce.__main__ import main\nmain()\n", "utf-8")
    script.chmod(0o755)
    (tmp_path / "mine.toml").touch()
    path = f"{script.parent}:{os.environ['PATH']}"
    root = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PATH": path, "PYTHONPATH": root, "TERM": "xterm", "HOME": str(tmp_path)}


@pytest.mark.parametrize("shell", SET_UP)
def test_tab_completes_what_is_typed(shell, environment, tmp_path):
    """Commands, options, machines, scenarios, calibrations, strategies and files."""
    _needs(shell)
    command, set_up = SET_UP[shell]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=tmp_path,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = bytearray()
    reader = threading.Thread(target=_drain, args=(ours, shown), daemon=True)
    reader.start()
    # Ctrl-A and Ctrl-E go to both ends of the line, so that it is printed and not run.
    lines = [f"simreduce {line}\t\x01echo \x05 >> typed\n" for line in LINES]
    for keys in [set_up, *lines, "exit\n"]:
        os.write(ours, keys.encode())
    try:
        process.wait(timeout=240)
    finally:
        process.kill()
        reader.join(timeout=10)
    typed = (tmp_path / "typed").read_text("utf-8").splitlines()

    completed = [" ".join(line.removeprefix("simreduce").split()) for line in typed]
    assert [*LINES.values()] == completed, shown.decode(errors="replace")


def test_fish_offers_the_same(environment, tmp_path):
    """fish says itself what Tab would offer."""
    _needs("fish")
    asked = "\n".join(f"complete --do-complete 'simreduce {line}'; echo ==" for line in LINES)
    set_up = "_SIMREDUCE_COMPLETE=fish_source simreduce | source"
    done = subprocess.run(
        ["fish", "--no-config", "--command", f"{set_up}\n{asked}"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    offered = [
        [line.split("\t")[0] for line in part.strip().splitlines()]
        for part in done.stdout.split("==\n")[:-1]
    ]

    assert [[line.split()[-1]] for line in LINES.values()] == offered


def _needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here: its completion is not tried")


def _drain(stream: int, shown: bytearray) -> None:
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while part := os.read(stream, 1 << 12):
            shown += part
