"""Writers of shell, environment, YAML and hostfiles: other programs read back what they got."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml as yaml_reader
from hypothesis import example, given, settings, strategies as st

from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.export import export, writers
from simreduce.export.framework import Choice
from simreduce.export.frameworks import LAUNCHERS
from simreduce.export.writers import (
    arguments,
    comment,
    environment,
    mapping,
    script,
    sequence,
    yaml,
)
from simreduce.files.formats import Name
from simreduce.files.formats.syntax import Faults
from simreduce.planners.nccl import read_settings
from simreduce.planners.strategy import parse_strategy
from simreduce.study.ranking import Question, choice_of
from simreduce.workload.loader import load_workload
from tests.thorough import examples

FOLDER = Path(writers.__file__).parent
WORDS = ["a b", "$(true)", "`true`", 'say "x"', "it's", "a\\b", "#1", "~", "*", "a;b", "", "é"]
"""What a shell would read differently without quotes."""
NAMES = st.text("aeoxnTN_019.:/-", min_size=1, max_size=12).filter(lambda text: text[0] != "-")


@pytest.fixture(scope="module")
def choice() -> Choice:
    setup = Setup("gh200x2,fabric=switch", "nccl")
    asked = Question(parse_strategy("nccl"), load_workload("bytes:1MiB"), setup)
    return choice_of(asked, None)


def run(text: str) -> str:
    found = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    return found.stdout


@settings(max_examples=examples(400), deadline=None)
@given(st.tuples(NAMES, NAMES).filter(lambda pair: pair[0] != pair[1]))
@example(("true", "no"))
@example(("1e3", "0x1f"))
@example(("2024-01-01", "1:30"))
@example((".inf", "h:"))
@example(("a" * 255, "/"))
def test_every_name_comes_back(choice: Choice, names: tuple[str, str]) -> None:
    made = replace(choice, hosts=tuple(map(Name, names)))
    files = {name: text for each in LAUNCHERS for name, text in export(each, made).items()}

    shells = [text for name, text in files.items() if name.endswith(".sh")]
    assert len(shells) == 4
    subprocess.run(["sh", "-n"], input="\n".join(shells), text=True, check=True)
    assert f"--master-addr={names[0]}" in shlex.split(files["torchrun.sh"], comments=True)
    terms = next(iter(yaml_reader.safe_load(files["pod.yaml"])["spec"]["affinity"].values()))
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == [*names]
    assert files["hosts"].splitlines() == [*names]
    rows = {key: files[key].splitlines()[1:] for key in ("hostfile", "mpich-hostfile")}
    assert [row.split(" ")[0] for row in rows["hostfile"]] == [*names]
    assert [row.rpartition(":")[0] for row in rows["mpich-hostfile"]] == [*names]


def test_a_shell_reads_every_word_as_it_was_given() -> None:
    assert run(script([], ["printf", r"%s\n", *WORDS])).split("\n")[:-1] == WORDS
    rows = arguments([[word] for word in WORDS], " \\")
    assert run(rf"printf '%s\n' {rows}").split("\n")[:-1] == WORDS
    text = environment((f"X{i}", value) for i, value in enumerate(WORDS))
    shown = " ".join(f'"$X{i}"' for i in range(len(WORDS)))
    assert run(f"{text}printf '%s\\n' {shown}").split("\n")[:-1] == WORDS


def test_a_variable_that_has_no_value_is_left_out() -> None:
    """It is another program's to choose; 0 and an empty text are values."""
    assert 'X=0\nY=""\n' == environment([("W", None), ("X", 0), ("Y", ""), ("Z", None)])


def test_a_shell_reads_lists_by_collective(choice: Choice) -> None:
    given = read_settings({"NCCL_ALGO": "ring;allreduce:tree"}, Faults(), "")
    made = replace(choice, setup=Setup("gh200x2,fabric=switch", "nccl", nccl=given))
    text = export("nccl", made)["nccl.env"]
    assert run(f'{text}printf %s "$NCCL_ALGO"') == "ring;allreduce:tree"
    assert "# The quotes are the shell's: NCCL reads none in an nccl.conf." in text
    assert "quotes" not in export("nccl", choice)["nccl.env"]


@pytest.mark.parametrize("word", ["a\nb", "a\r", "\0", "a b\n"])
def test_no_word_has_a_line_break(word: str) -> None:
    for write in (
        lambda: script([], ["echo", word]),
        lambda: environment([("X", word)]),
        lambda: arguments([[word]]),
    ):
        with pytest.raises(InputError, match="has a line break"):
            write()


def test_a_comment_stays_one_line() -> None:
    text = comment("a\nb\x1b\r\u2028\0c")
    assert text == "# a\\nb\\x1b\\r\\u2028\\x00c\n"
    assert run(script(["a\ntrue\n$(true)"], ["echo", "x"])) == "x\n"
    assert yaml_reader.safe_load(yaml(["a\nb: c"], mapping({"x": 1}))) == {"x": 1}


@settings(max_examples=examples(500), deadline=None)
@given(st.dictionaries(st.text(max_size=6), st.text(max_size=6) | st.integers() | st.booleans()))
def test_yaml_keeps_text_and_types(table: dict[str, object]) -> None:
    document = {"top": {"inner": table, "last": None}} if table else {"top": 1}
    assert yaml_reader.safe_load(yaml([], mapping(document))) == document


@settings(max_examples=examples(500), deadline=None)
@given(st.floats(allow_nan=False))
@example(1e-05)
@example(-1e16)
@example(1e22)
@example(-0.0)
@example(float("-inf"))
@example(5e-324)
def test_yaml_keeps_floats(value: float) -> None:
    read = yaml_reader.safe_load(yaml([], mapping({"x": value})))["x"]
    assert (type(read), repr(read)) == (float, repr(value))


def test_yaml_keeps_what_is_no_number() -> None:
    assert repr(yaml_reader.safe_load(yaml([], mapping({"x": float("nan")})))) == "{'x': nan}"


TEXTS = ["1e-05", "1.0e-05", ".inf", "-.INF", ".nan", "inf", "nan", "1_000", "0o17", "017", "0x1f",
         "12:30", "1:2:3.5", "yes", "No", "ON", "off", "y", "N", "~", "null", "", "=", "<<", "-",
         "true", "2024-01-01", "2001-12-14t21:59:43.10-05:00", "a: b", "a #b", "!x", "&x", "*x",
         "\x85", "\u2028", "\ufeff", "\x7f", "\uffff", "\U0001f600"]  # fmt: skip


@settings(max_examples=examples(500), deadline=None)
@given(st.sampled_from(TEXTS) | st.text("0123456789eE._:+-oxnf", max_size=8) | st.text(max_size=8))
def test_yaml_keeps_texts(text: str) -> None:
    assert yaml_reader.safe_load(yaml([], mapping({text: text}))) == {text: text}
    assert yaml_reader.safe_load(sequence([text], 0)) == [text]


@pytest.mark.parametrize("text", TEXTS)
def test_yaml_keeps_texts_that_look_like_values(text: str) -> None:
    assert yaml_reader.safe_load(yaml([], mapping({"x": text}))) == {"x": text}


WRITERS = {"script", "environment", "arguments", "yaml", "host_lines"}
OTHERS = (".py", ".json", ".toml", ".csv", ".xml")
"""Files that no shell, no YAML reader and no launcher reads."""


def offences(source: str) -> tuple[int, list[str]]:
    """How many files of a module a writer must make, and what else makes text of one.

    All of their text is a writer's, and what a writer does not quote is a constant.
    """
    tree = ast.parse(source)
    constants = dict(_constants(tree))
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}

    def is_written(value: ast.AST | None) -> bool:
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
            return False
        own = functions.get(value.func.id)
        if own is None:
            return value.func.id in WRITERS
        returns = [each.value for each in ast.walk(own) if isinstance(each, ast.Return)]
        return bool(returns) and all(map(is_written, returns))

    count, found = 0, []
    for node in ast.walk(tree):
        for key, value in _files(node):
            name = key.value if isinstance(key, ast.Constant) else ""
            name = constants.get(key.id, "") if isinstance(key, ast.Name) else str(name)
            if not name.endswith(OTHERS):
                count += 1
                found += [] if is_written(value) else [f"line {key.lineno}: {name}"]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Raw":
            constant = [isinstance(each, ast.Constant) for each in node.args]
            found += [] if constant == [True] else [f"line {node.lineno}: Raw"]
    return count, found


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = zip(getattr(target, "elts", [target]), getattr(value, "elts", [value]))  # noqa: B905
            for name, each in pairs:
                if isinstance(name, ast.Name) and isinstance(each, ast.Constant):
                    yield name.id, str(each.value)


def _files(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Names and texts of the files that a function or a lambda returns."""
    bodies: list[ast.AST | None] = []
    if isinstance(node, ast.FunctionDef):
        returned = ast.unparse(node.returns) if node.returns else ""
        if re.fullmatch(r"(Mapping|dict)\[str, str\]", returned):
            bodies = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
    elif isinstance(node, ast.Lambda):
        bodies = [node.body]
    for body in bodies:
        if isinstance(body, ast.Dict):
            yield from ((k, v) for k, v in zip(body.keys, body.values, strict=True) if k)


def test_only_writers_make_the_text_of_files_that_shells_read() -> None:
    found = {p.name: offences(p.read_text("utf-8")) for p in FOLDER.rglob("*.py")}
    del found["writers.py"]
    assert {name: wrong for name, (_, wrong) in found.items() if wrong} == {}
    assert sum(count for count, _ in found.values()) >= 15
    assert found["launchers.py"][0] == 10


@pytest.mark.parametrize(
    ("body", "offence"),
    [
        ('{"x.sh": f"echo {host}"}', "line 5: x.sh"),
        ('{"x.env": "A=" + host}', "line 5: x.env"),
        ("{HOSTS: text(host)}", "line 5: hosts"),
        ('{"x.sh": script([], [Raw(f"echo {host}")])}', "line 5: Raw"),
        ('{"x.sh": script([], [Raw(host)])}', "line 5: Raw"),
        ('{"x.sh": script([], ["echo", f"x={host}", Raw("x")]), "x.py": host}', ""),
    ],
)
def test_text_that_no_writer_made_is_found(body: str, offence: str) -> None:
    source = f"""HOSTS = "hosts"
def text(host):
    return host
def files(host) -> Mapping[str, str]:
    return {body}
"""
    assert offences(source)[1] == [offence] * bool(offence)
