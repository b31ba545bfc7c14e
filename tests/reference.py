"""What the code says of itself, for the pages of docs: help, algorithms, names, files, documents.

A page has it between `<!-- generated: NAME WORDS... -->` and `<!-- end -->`, and
`tests/test_documents.py` compares the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

import simreduce
from simreduce.app.cli import cli
from simreduce.files.formats import Format, MapOf, TableOf, TablesOf
from simreduce.files.formats.documents import Lines, Output, Record, inside
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.report.schemas import FORMATS, outputs
from simreduce.workload.decoder import ARCHITECTURES, SHAPE, of_sequences
from simreduce.workload.loader import load_workload, shipped

_ROOT = Path(__file__).parents[1]
_WIDTH = 99


def _command(*words: str) -> str:
    """The help of a command."""
    command: click.Command = cli
    context = click.Context(cli, info_name="simreduce", help_option_names=["-h", "--help"])
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None
        command, context = found, click.Context(found, info_name=word, parent=context)
    context.max_content_width = _WIDTH
    context.terminal_width = _WIDTH
    command._help_option = None  # click keeps the one of whoever asked first, without our -h
    return f"```text\n{command.get_help(context)}\n```"


def _names(group: click.Group, context: click.Context, before: str = "") -> Iterator[str]:
    """`topo`, `topo list` and so on."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield f"{before}{name}"
        if isinstance(command, click.Group):
            yield from _names(command, click.Context(command, context, name), f"{before}{name} ")


COMMANDS = tuple(_names(cli, click.Context(cli)))


def _algorithms() -> str:
    """Every registered algorithm."""
    rows = [f"| `{a.name}` | {a.summary} |" for a in ALGORITHMS.values()]
    return "\n".join(["| algorithm | how |", "| --- | --- |", *rows])


def _models() -> str:
    """Every shipped model with its size, and the tokens of a sequence unless stated."""
    rows = []
    for name in shipped():
        known = ARCHITECTURES.get(name)
        tokens = f"{known.usual}" if known and of_sequences(name) else ""
        rows.append(f"| `{name}` | {load_workload(name).elements / 1e6:,.1f} M | {tokens} |")
    head = ["| model | parameters | tokens of a sequence |", "| --- | --- | --- |"]
    return "\n".join([*head, *rows])


def _api() -> str:
    """Every public name with its signature and docstring."""
    return "\n\n".join(_entry(name) for name in sorted(simreduce.__all__))


def _entry(name: str) -> str:
    value = getattr(simreduce, name)
    text = inspect.getdoc(value) or ""
    if not callable(value):
        return f"## {name}\n\n{text}"
    return f"## {name}\n\n```py\n{name}{_signature(value)}\n```\n\n{text}"


def _signature(value: Callable[..., object]) -> str:
    parts = [_parameter(each) for each in inspect.signature(value).parameters.values()]
    one = f"({', '.join(parts)})"
    return one if len(one) < 80 else "(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def _parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    if parameter.default is not parameter.empty:
        default = parameter.default
        text += f" = {getattr(default, 'name', getattr(default, '__name__', repr(default)))}"
    return text


def reference(form: Format) -> str:
    """The reference of a format in Markdown: its keys, then its tables' keys."""
    return "\n".join(_tables(form, "")).rstrip()


def _tables(form: Format, place: str) -> Iterator[str]:
    yield from (f"### `[{place}]`" if place else f"## {form.name}", "", form.about, "")
    yield from ("| key | value | default | meaning |", "| --- | --- | --- | --- |")
    inner: list[tuple[Format, str]] = []
    for field in form.fields:
        default = "required" if field.required else field.default_words or _words(field.default)
        yield _row(f"`{field.key}`", field.kind.words, default, field.about)
        kind, path = field.kind, f"{place}.{field.key}".lstrip(".")
        if isinstance(kind, MapOf) and isinstance(kind.kind, TableOf):
            inner.append((kind.kind.form, f"{path}.{kind.key}"))
        elif isinstance(kind, TableOf):
            inner += [(form, path) for form in (kind.form, *kind.others)]
        elif isinstance(kind, TablesOf):
            inner.append((kind.form, f"[{path}]"))
    yield ""
    for each, path in inner:
        yield from _tables(each, path)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _words(default: object) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if isinstance(default, int | str) and default != "" else ""


def output_reference(output: Output) -> str:
    """The reference of an output in Markdown: its keys, then its objects' keys."""
    lines = [f"## {output.name}", "", output.about, ""]
    if isinstance(output, Lines):
        records = {record.name: record for record in output.records} | inside(output.records)
    else:
        lines, records = [*lines, *_keys(output)], inside([output])
    for name, record in records.items():
        lines += [f"### {name}", "", record.about, "", *_keys(record)]
    return "\n".join(lines).rstrip()


def _keys(record: Record) -> Iterator[str]:
    yield from ("| key | value | unit | meaning |", "| --- | --- | --- | --- |")
    for key in record.keys:
        unit = "" if key.kind.unit == "1" else key.kind.unit
        about = f"{key.about} May be missing." if key.optional else key.about
        yield _row(f"`{key.name}`", key.kind.words, unit, about)
    if record.others:
        yield f"| other names | {record.others.words} | | Chosen by the user. |"
    yield ""


GENERATED: Mapping[str, Callable[..., str]] = {
    "command": _command,
    "algorithms": _algorithms,
    "api": _api,
    "source": lambda place: f"```py\n{(_ROOT / place).read_text('utf-8')}```",
    "models": _models,
    "decoder": lambda: reference(SHAPE),
    "formats": lambda: "\n\n".join(reference(form) for form in FORMATS.values()),
    "outputs": lambda: "\n\n".join(output_reference(found) for found in outputs().values()),
}
"""Markdown by the name of a part."""
