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
from simreduce.app.cli.main import cli
from simreduce.files.formats import reference
from simreduce.files.formats.documents import output_reference
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.report.schemas import FORMATS, outputs

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


GENERATED: Mapping[str, Callable[..., str]] = {
    "command": _command,
    "algorithms": _algorithms,
    "api": _api,
    "source": lambda place: f"```py\n{(_ROOT / place).read_text('utf-8')}```",
    "formats": lambda: "\n\n".join(reference(form).strip() for form in FORMATS.values()),
    "outputs": lambda: "\n\n".join(output_reference(found).strip() for found in outputs().values()),
}
"""Markdown by the name of a part."""
