"""Asking programs what they understand of exports, without the programs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from simreduce_validate.programs import __main__ as command, asking
from simreduce_validate.programs.answers import ProgramAnswer, read_answer
from simreduce_validate.programs.asking import AskedProgram, ask, read_programs
from simreduce_validate.programs.cases import ExportCase, MeantFiles

from simreduce.errors import InputError

SAYS = """\
import json, sys
from pathlib import Path
given = json.loads(Path(sys.argv[1], "ask.json").read_text())
print("a line that is no answer")
print(json.dumps({"version": "1.2", "understood": {**given, "text": Path("a.env").read_text()}}))
"""


@pytest.fixture(name="program")
def scripted(tmp_path, monkeypatch):
    """A program whose script says what it is given, and whose environment is ours."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "jax.py").write_text(SAYS)
    place = tmp_path / "environments" / "jax" / "bin"
    place.mkdir(parents=True)
    (place / "python").symlink_to(sys.executable)
    monkeypatch.setattr(asking, "SCRIPTS", tmp_path / "scripts")
    monkeypatch.setattr(command, "prepare", lambda *_, **__: place.parent)
    return AskedProgram("jax", "JAX", {"jax": "all"})


def made(**meant: object) -> ExportCase:
    files = {"a.env": "A=1"}
    return ExportCase("jax", "jax", "a case", lambda: MeantFiles(files, meant, {"threshold": 4}))


def asked(tmp_path: Path, monkeypatch, *cases: ExportCase) -> tuple[int, Path]:
    """The status of the command for these cases, and the file with its answer."""
    monkeypatch.setattr(command, "cases_of", lambda _: iter(cases))
    folder = tmp_path / "answers"
    words = ["jax", "--environments", str(tmp_path), "--answers", str(folder)]
    return command.main(words), folder / "jax.json"


def test_a_script_reads_the_files_and_what_it_is_given(program, tmp_path):
    version, understood = ask(program, tmp_path / "environments" / "jax", made())

    assert (version, understood) == ("1.2", {"threshold": 4, "text": "A=1"})


@pytest.mark.usefixtures("program")
def test_an_answer_is_stored_and_one_that_is_the_same_keeps_its_date(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command.time, "strftime", lambda _: "2026-01-01")
    status, path = asked(tmp_path, monkeypatch, made(threshold=4))
    monkeypatch.setattr(command.time, "strftime", lambda _: "2026-02-02")
    again, _ = asked(tmp_path, monkeypatch, made(threshold=4))

    answer = read_answer(path)
    assert (status, again) == (0, 0)
    assert isinstance(answer, ProgramAnswer)
    assert answer.words == "JAX 1.2, 2026-01-01"
    assert answer.cases["a case"].files == {"a.env": "A=1"}
    said = capsys.readouterr().out
    assert "same as on 2026-01-01" in said
    assert "| `jax` | JAX 1.2 | 2026-01-01 |" in said


@pytest.mark.usefixtures("program")
def test_what_is_understood_otherwise_is_printed_and_fails(tmp_path, monkeypatch, capsys):
    status, _ = asked(tmp_path, monkeypatch, made(threshold=5))

    assert status == 1
    assert "a case: threshold: 5 was meant, 4 understood" in capsys.readouterr().out


@pytest.mark.usefixtures("program")
def test_a_script_that_fails_is_named_and_stores_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "scripts" / "jax.py").write_text("raise SystemExit('no such flag')")

    status, path = asked(tmp_path, monkeypatch, made())

    assert status == 1
    assert not path.exists()
    assert "not asked: a case: status 1: no such flag" in capsys.readouterr().out


def test_an_unknown_program_is_named():
    with pytest.raises(InputError, match="jaxx: no program"):
        command.main(["jaxx", "--environments", "nowhere"])


def test_the_newest_tag_is_like_the_pinned_one(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "a"], check=True)
    for tag in ("core_v0.9.0", "core_v0.19.0", "core_v0.20.0rc1", "v9.0.0"):
        subprocess.run([*git, "tag", tag], check=True)

    assert asking._newest_tag(str(tmp_path), "core_v0.16.1") == "core_v0.19.0"
    assert asking._newest_tag(str(tmp_path), "master") == "master"


def test_an_environment_is_made_again_where_requirements_change(tmp_path, monkeypatch):
    ran: list[tuple[str, ...]] = []

    def run(*words: str | Path) -> str:
        ran.append(tuple(map(str, words)))
        (tmp_path / "jax").mkdir(exist_ok=True)
        return ""

    monkeypatch.setattr(asking, "_run", run)
    program = replace(read_programs()[0]["jax"], requirements=["jax==1"], alone=["lib==2"])
    asking.prepare(program, tmp_path)
    made_once = len(ran)
    asking.prepare(program, tmp_path)
    assert len(ran) == made_once == 3
    assert ran[1][-1] == "jax==1"
    assert ran[2][-2:] == ("--no-deps", "lib==2")

    asking.prepare(replace(program, requirements=["jax==2"]), tmp_path)
    assert ran[-2][-1] == "jax==2"
