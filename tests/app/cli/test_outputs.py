"""Files that commands write: `-` is stdout, and a file that cannot be written stays as it was."""

from __future__ import annotations

import json
import os

import pytest

STEP = """topology = "full:2"
workload = "bytes:64K"
strategies = ["ring"]
[step]
batch = 1
time = "1 ms"
"""

COMMANDS = {
    "bench": ["bench", "full:2", "-b", "4K", "-J"],
    "step": ["step", "step.toml", "--workers", "1", "--trace"],
    "trace": ["trace", "full:2", "-b", "4K", "-o"],
    "show": ["topo", "show", "full:2", "--svg"],
    "rings": ["topo", "rings", "full:2", "--svg"],
    "trees": ["topo", "trees", "full:2", "--svg"],
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.toml").write_text(STEP)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_dash_is_stdout_and_the_table_goes_to_stderr(simreduce, tmp_path, command):
    """The document is the same as in a file, but for the times and the name in nccl-tests' one."""
    printed = simreduce(*command, "-")
    kept = simreduce(*command, "file")
    file = (tmp_path / "file").read_text()

    assert (0, 0) == (printed.status, kept.status)
    if command[0] == "bench":
        assert json.loads(file)["results"] == json.loads(printed.out)["results"]
    else:
        assert file == printed.out
    if command[0] not in ("trace", "topo"):
        assert printed.err.splitlines()[2:] == kept.out.splitlines()[2:] != []


@pytest.mark.parametrize("name", ["bench", "step", "show", "rings"])
def test_stdout_takes_one_document(simreduce, name):
    option = COMMANDS[name][-1]
    status, out, err = simreduce(*COMMANDS[name], "-", "--json")

    assert (2, "") == (status, out)
    assert f"simreduce: --json and {option} -: stdout takes one of them\n" == err


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("none/file", "there is no such folder"),
        (".", "it is a folder"),
        ("step.toml/file", "there is no such folder"),
        ("closed/file", "you may not (see its permissions)"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_line(
    simreduce, tmp_path, monkeypatch, command, place, reason
):
    """With status 2, before any work."""
    (tmp_path / "closed").mkdir(mode=0o500)
    access = os.access  # root may write everywhere, so the folder says no to it too
    monkeypatch.setattr(
        "simreduce.files.os.access",
        lambda path, mode: path != "closed" and access(path, mode),
    )
    status, out, err = simreduce(*command, place)

    assert (2, "") == (status, out)
    assert 1 == err.count("\n")
    assert err.startswith("simreduce: ")
    assert err.endswith(f"{place}: cannot be written: {reason}\n")
    assert [] == list((tmp_path / "closed").iterdir())


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_writer_that_fails_leaves_the_old_file(simreduce, tmp_path, monkeypatch, command):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr("simreduce.files.os.fsync", full)
    status, _, err = simreduce(*command, "file")

    assert (2, "simreduce: file: cannot be written: No space left on device\n") == (status, err)
    assert "old" == (tmp_path / "file").read_text()
    assert {"file", "step.toml"} == {path.name for path in tmp_path.iterdir()}
