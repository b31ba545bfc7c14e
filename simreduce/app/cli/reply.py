"""Replies of commands: a table or a document, files, pictures and an exit status."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from simreduce.app.cli.terminal import show, wide_option
from simreduce.files.formats import Faults
from simreduce.files.outputs import STDOUT, check_place, write_file

if TYPE_CHECKING:
    from simreduce.report.drawing import Drawing
    from simreduce.report.plots import Plot

Decorator = Callable[[Any], Any]

_FORMATS = ("svg", "png")
STOPPED = 130
"""Exit status of a command that Ctrl-C or SIGTERM ended."""


class OutputOption(click.Option):
    """An option that names a file to write; `-` is stdout."""


class PictureOption(OutputOption):
    """`--svg` or `--png`."""


def output_option(*names: str, about: str, default: str | None = None) -> Callable[[Any], Any]:
    """An option that names a file to write."""
    return click.option(*names, cls=OutputOption, default=default, metavar="FILE", help=about)


def picture_options(what: str) -> Decorator:
    """`--svg` and `--png`; `what` says what they draw."""
    needs = {"png": " (needs simreduce[png])"}
    return options(
        *(
            click.option(
                f"--{form}", cls=PictureOption, default=None, metavar="FILE",
                help=f"{what}, as {form.upper()}{needs.get(form, '')}; -: stdout.",
            )
            for form in _FORMATS
        )
    )  # fmt: skip


def options(*decorators: Decorator) -> Decorator:
    """One decorator for several options, in the order of `--help`."""

    def added(command: Any) -> Any:
        for option in reversed(decorators):
            command = option(command)
        return command

    return added


report_options = options(
    wide_option,
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document instead of the table."
    ),
)
"""For every command that prints a report."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a command. Functions make its parts, as nobody asks for all of them.

    `text` is a table, or its lines; `document` takes its place under `--json`. `files` has the
    pieces of the file that the parameter of that name asks for, `picture` what `--svg` and `--png`
    show. Lines of `paste` follow the table, printed as they are.
    """

    text: Callable[[], str | Iterable[str]]
    document: Callable[[], Mapping[str, Any]]
    files: Mapping[str, Callable[[], Iterable[str | bytes]]] = field(default_factory=dict)
    picture: Callable[[], Plot | Drawing] | None = None
    paste: str = ""
    failed: bool = False
    complete: bool = True

    def give(self) -> int:
        """Print the reply, write its files, and return the exit status."""
        if wants_json():
            echo_json(self.document())
        else:
            text = self.text()
            text = text if isinstance(text, str) else "\n".join(text)
            show(text, *output_paths().values(), paste=self.paste)
        for name, pieces in self.files.items():
            if (path := output_path(name)) is not None:
                write_output(path, pieces())
        if self.picture:
            write_pictures(self.picture)
        return int(self.failed) if self.complete else STOPPED


def wants_json() -> bool:
    """Whether the command at hand got `--json`."""
    return bool(click.get_current_context().params.get("as_json"))


def output_path(name: str) -> str | None:
    """The file that a parameter of the command at hand names."""
    path = click.get_current_context().params[name]
    assert path is None or isinstance(path, str)  # noqa: S101 - as click read it
    return path


def output_paths(kind: type[OutputOption] = OutputOption) -> dict[str, str]:
    """Files that the command at hand is to write, by the options that name them."""
    context = click.get_current_context()
    named = {
        each.opts[0]: context.params[each.name or ""]
        for each in context.command.params
        if isinstance(each, kind)
    }
    return {option: path for option, path in named.items() if path is not None}


def parse_faults(context: click.Context) -> list[str]:
    """The faults that parsing found in the options of the command at hand."""
    found = context.meta.setdefault("simreduce.faults", [])
    assert isinstance(found, list)  # noqa: S101 - as made above
    return found


def option_faults() -> Faults:
    """Faults of the options of the command at hand, and of the files that it is to write: places
    where there can be none, stdout for two of them, pictures that cannot be drawn. The command
    adds its own, and raises them before it does any work.
    """
    faults, outputs = Faults(), output_paths()
    faults.problems += parse_faults(click.get_current_context())
    for path in outputs.values():
        faults.attempt("", check_place, path)
    printed = ["--json"] * wants_json() + [f"{o} -" for o in outputs if outputs[o] == STDOUT]
    if len(printed) > 1:
        faults.add("", f"{' and '.join(printed)}: stdout takes one of them")
    pictures = output_paths(PictureOption)
    for option, path in pictures.items():
        other = os.path.splitext(path)[1].lower().removeprefix(".")  # noqa: PTH122 - Path raises
        if other in _FORMATS and option != f"--{other}":
            why = f"the name says that it is {other.upper()}; write --{other} {path}"
            faults.add(f"{option} {path}", why)
    if len(pictures) == 2 and len(places := {*pictures.values()}) == 1 and STDOUT not in places:
        faults.add(" and ".join(map(" ".join, pictures.items())), "one file cannot be both")
    if "--png" in pictures:
        from simreduce.report.drawing import check_png  # noqa: PLC0415 - takes time

        faults.attempt(f"--png {pictures['--png']}", check_png)
    return faults


def write_pictures(make: Callable[[], Plot | Drawing]) -> None:
    """Write what `make` returns to the files of `--svg` and `--png`, if there are any."""
    paths = output_paths(PictureOption)
    picture = make() if paths else None
    for option, path in paths.items():
        write_output(path, [_render(picture, option == "--png")])


def _render(picture: Any, png: bool) -> str | bytes:
    from simreduce.report.drawing import Drawing, to_png, to_svg  # noqa: PLC0415 - takes time

    drawing = picture if isinstance(picture, Drawing) else picture.drawing()
    return to_png(drawing) if png else to_svg(drawing)


def echo_json(document: Mapping[str, Any]) -> None:
    """Print the one document that `--json` promises."""
    click.echo(json_text(document), nl=False)


def json_text(document: Mapping[str, Any]) -> str:
    """A document as files and stdout have it."""
    return json.dumps(document, indent=2) + "\n"


def write_output(path: str, pieces: Iterable[str | bytes]) -> None:
    """Write a file of the user's, or stdout for `-`."""
    if path != STDOUT:
        write_file(path, pieces)
        return
    for piece in pieces:
        click.echo(piece, nl=False)
