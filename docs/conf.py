"""The documentation site: `make docs` builds it. Reference pages come from the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import click
from docutils import nodes
from docutils.statemachine import StringList
from pygments.lexers.shell import BashSessionLexer
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import simreduce
from simreduce.app.cli.main import cli
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.report.schemas import output_texts, reference_texts

project = "simreduce"
author = "The simreduce authors"
release = version = simreduce.__version__
extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
html_theme = "furo"
html_title = f"simreduce {version}"
copybutton_prompt_text = "$ "
nitpicky = True


class Console(BashSessionLexer):
    """Console blocks in which only `$` begins a command: our own output begins lines with `#`."""

    _ps1rgx = re.compile(r"^(\$ )(.*\n?)")
    _ps2 = "> "


class _Generated(SphinxDirective):
    """Markdown that a function of the code writes."""

    optional_arguments = 9

    def markdown(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        lines = self.markdown().splitlines()
        source = StringList(lines, f"<{self.name}>")
        return self.parse_text_to_nodes("\n".join(source), allow_section_headings=True)


class Command(_Generated):
    """The help of a command."""

    def markdown(self) -> str:
        command: click.Command = cli
        context = click.Context(cli, info_name="simreduce")
        for name in self.arguments:
            found = command.get_command(context, name) if isinstance(command, click.Group) else None
            if found is None:
                raise self.error(f"no command {name}")
            command, context = found, click.Context(found, info_name=name, parent=context)
        context.max_content_width = 99
        return f"```text\n{command.get_help(context)}\n```"


class Algorithms(_Generated):
    """Every registered algorithm."""

    def markdown(self) -> str:
        rows = [f"| `{a.name}` | {a.summary} |" for a in ALGORITHMS.values()]
        return "\n".join(["| algorithm | how |", "| --- | --- |", *rows])


class Api(_Generated):
    """Every public name with its signature and docstring."""

    def markdown(self) -> str:
        return "\n\n".join(_entry(name) for name in sorted(simreduce.__all__))


def _entry(name: str) -> str:
    value = getattr(simreduce, name)
    text = inspect.getdoc(value) or ""
    if not callable(value):
        return f"## {name}\n\n{text}"
    return f"## {name}\n\n```python\n{name}{_signature(value)}\n```\n\n{text}"


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


class Formats(_Generated):
    """The keys of every file format."""

    def markdown(self) -> str:
        return "\n\n".join(reference_texts().values())


class Outputs(_Generated):
    """The keys of every document that simreduce writes."""

    def markdown(self) -> str:
        return "\n\n".join(output_texts().values())


def setup(app: Sphinx) -> None:
    app.add_lexer("console", Console)
    app.add_directive("command", Command)
    app.add_directive("algorithms", Algorithms)
    app.add_directive("api", Api)
    app.add_directive("formats", Formats)
    app.add_directive("outputs", Outputs)
