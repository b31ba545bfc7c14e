"""Replies of commands: a table or a document, files, pictures and an exit status; and progress.

Long commands show how far they are, and can be stopped.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from simreduce.app.cli.terminal import is_terminal, legible, show, wide_option
from simreduce.computing import workers, workers as notices
from simreduce.errors import escape
from simreduce.files import STDOUT, check_place, write_file
from simreduce.files.formats.syntax import Faults

if TYPE_CHECKING:
    from simreduce.report.drawing import Drawing
    from simreduce.report.plots import Plot

T = TypeVar("T")

Decorator = Callable[[Any], Any]

PICTURES = ("svg", "png")
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
            for form in PICTURES
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
    show; without one they say that they write nothing. Lines of `paste` follow the table, printed
    as they are.
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
        with holding_interrupts() as held:
            self._give()
        return int(self.failed) if self.complete and not held else STOPPED

    def _give(self) -> None:
        with Progress("preparing the answer"):
            made = json_text(self.document()) if wants_json() else self.text()
            text = made if isinstance(made, str) else "\n".join(made)
        if wants_json():
            click.echo(text, nl=False)
        else:
            show(text, *output_paths().values(), paste=self.paste)
        for name, pieces in self.files.items():
            if (path := output_path(name)) is not None:
                write_output(path, pieces())
        if self.picture:
            write_pictures(self.picture)
        for option, path in output_paths(PictureOption).items() if not self.picture else ():
            say(f"{option} {path}: not written, as this answer has no picture")


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


def check_outputs(faults: Faults) -> None:
    """Note the faults of the files that the command at hand is to write: places where there can be
    none, stdout for two of them, pictures that cannot be drawn.
    """
    outputs = output_paths()
    for path in outputs.values():
        faults.attempt("", check_place, path)
    printed = ["--json"] * wants_json() + [f"{o} -" for o in outputs if outputs[o] == STDOUT]
    faults.check(len(printed) < 2, "", f"{' and '.join(printed)}: stdout takes one of them")
    pictures = output_paths(PictureOption)
    for option, path in pictures.items():
        other = os.path.splitext(path)[1].lower().removeprefix(".")  # noqa: PTH122 - Path raises
        if other in PICTURES and option != f"--{other}":
            why = f"the name says that it is {other.upper()}; write --{other} {path}"
            faults.add(f"{option} {path}", why)
    places = [*pictures.values()]
    twice = len(places) == 2 and places[0] == places[1] != STDOUT
    both = " and ".join(map(" ".join, pictures.items()))
    faults.check(not twice, both, "one file cannot be both")
    if "--png" in pictures:
        from simreduce.report.drawing import check_png  # noqa: PLC0415 - takes time

        faults.attempt(f"--png {pictures['--png']}", check_png)


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


def json_text(document: Mapping[str, Any]) -> str:
    """A document as files and stdout have it."""
    return json.dumps(document, indent=2) + "\n"


def write_output(path: str, pieces: Iterable[str | bytes]) -> None:
    """Write a file of the user's, or stdout for `-`."""
    if path != STDOUT:
        write_file(path, pieces)
        return
    for piece in pieces:
        click.echo(escape(piece, "\n\t") if isinstance(piece, str) else piece, nl=False)


QUIET = 10.0
"""Seconds between two lines where stderr is no terminal; the first comes after half of them."""
_LONG_LEFT = 20.0
"""Seconds that are left from which on a command points at --quick."""

_LEAST_LEFT = 3.0
"""Seconds that must be left for a word about them."""
_REDRAW = 1.0
"""Seconds after which a line on a terminal is drawn again although nothing has changed."""
_BLINK = 0.05
"""Seconds at least between two drawings of a line."""
_BAR, _LEAST_BAR = 20, 5
"""Characters of a bar on a terminal, and those below which there is none."""
_BAR_SIGNS = ("\u2501", "\u2500")
"""Signs of the part that is done, and of the rest."""
_AGAIN = 0.05
"""Seconds after which an interrupt that was dropped is raised again."""
_ONE = 1.0
"""Seconds within which signals are one: `timeout` sends one to a command and one to its group."""
_heard = [-inf]
"""When the last signal came that was none with one before."""


def _is_new() -> bool:
    """Whether the signal at hand is not one with the last."""
    now = time.monotonic()
    if now - _heard[0] < _ONE:
        return False
    _heard[0] = now
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _is_new():
        signal.default_int_handler(number, frame)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM call a handler."""
    before = {each: signal.signal(each, handler) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, own in before.items():
            signal.signal(each, own)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that a command prints the results it has.

    Python drops an interrupt that arrives in a callback of C code, as numba has while it loads
    compiled code, or in a destructor. Such an interrupt is raised again soon.
    """
    _heard[0] = -inf
    hook = sys.unraisablehook
    timers: list[threading.Timer] = []

    def raise_again(dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            _heard[0] = -inf
            # Another thread raises it, as here it would be dropped too.
            timer = threading.Timer(_AGAIN, _thread.interrupt_main, [signal.SIGTERM])
            timer.daemon = True
            timers.append(timer)
            timer.start()
        elif not timers:  # later ones are of objects that the interrupt left half made
            hook(dropped)

    sys.unraisablehook = raise_again
    try:
        with _handling(_interrupt):
            yield
    finally:
        for timer in timers:
            timer.cancel()
        sys.unraisablehook = hook


@contextlib.contextmanager
def holding_interrupts() -> Iterator[list[int]]:
    """Keep Ctrl-C and SIGTERM from losing an answer while it is written. The first is noted in the
    list, and what the answer can do without is left out; the second raises KeyboardInterrupt.
    """
    held = list[int]()

    def hold(number: int, _: object) -> None:
        if not _is_new():
            return
        held.append(number)
        if len(held) > 1:
            raise KeyboardInterrupt
        ending.enter_context(workers.no_time())
        os.write(2, b"simreduce: the answer is being written; once more ends without it\n")

    with _handling(hold), contextlib.ExitStack() as ending:
        yield held


class Progress(workers.Work):
    """Says on stderr how far some work is: on a terminal in a line that is drawn again and again
    and disappears at the end, elsewhere in a new line after 5 s and then every 10 s.

    `text` may have two places for numbers, `simulated {} of {} plans`; a call fills them. On a
    terminal, the lines that `preview` makes of what `watch` has passed on stand above. It says how
    long the others take at the mean pace, or less where a budget of time ends before; nothing where
    bounds will spare most of them (`spares`). A command that has --quick (`quick`) points at it
    where it takes long without.
    """

    def __init__(
        self,
        text: str,
        preview: Callable[[list[Any]], Sequence[str]] = lambda _: (),
        *,
        spares: bool = False,
        quick: bool = False,
    ) -> None:
        super().__init__()
        self._quick = quick and workers.time_left() == inf
        self._text, self._preview, self._spares = text, preview, spares
        self._share, self._doing = 0.0, ""
        self._terminal = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._began, self._drawn = time.monotonic(), 0.0
        self._lengths: list[int] = []  # of the lines that stand there
        self._lock, self._process = threading.Lock(), os.getpid()
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def show(self) -> None:
        """Draw the line, unless that was a moment ago or nothing is done."""
        self._share = 0.0
        if self.counts[0] and self._terminal and time.monotonic() - self._drawn >= _BLINK:
            self._draw()

    def name(self, doing: str) -> None:
        """Say what is done of the next one."""
        self._doing = f", {doing}"

    def part(self, share: float) -> None:
        """Note the share of the next one that is done."""
        self._share = share

    def __enter__(self) -> Self:
        notices.simulating.append(self.part)
        _drawn.append(self)
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        notices.simulating.remove(self.part)
        self._over.set()
        self._ticker.join()
        _drawn.remove(self)
        self.erase()

    def erase(self) -> None:
        """Remove what is drawn; it may be drawn again."""
        if os.getpid() != self._process:  # which alone knows what is drawn
            if self._terminal:
                click.echo("\r\033[K", nl=False, err=True)
            return
        with self._lock:
            if self._drawn and self._terminal:
                click.echo(self._back(_size()[0]), nl=False, err=True)
                self._lengths = []

    def _tick(self) -> None:
        pause = _REDRAW if self._terminal else QUIET / 2
        while not self._over.wait(pause):
            self._draw()
            pause = _REDRAW if self._terminal else QUIET

    def _draw(self) -> None:
        with self._lock:
            self._drawn = time.monotonic()
            known = self.counts[1] or "{" not in self._text
            text = self._text if known else "working out what to simulate"
            text, seconds = escape(text.format(*self.counts)), self._drawn - self._began
            part = f" ({self._share:.0%} of the next)" if self._share else ""
            line = f"{text}{part}{escape(self._doing)}, {seconds:.0f} s{self._left(seconds)}"
            if not self._terminal:
                click.echo(line, err=True)
                return
            width, height = _size()
            above = [*self._preview(self.seen)][: max(height - 2, 0)]
            lines = [
                escape(text)[: width - 1]
                for text in (*above, f"{self._bar(width - len(line))}{line}")
            ]
            begin, self._lengths = self._back(width), [*map(len, lines)]
            click.echo(begin + "\n".join(lines), nl=False, err=True)

    def _left(self, seconds: float) -> str:
        """How long the rest takes. As quick questions come first, that is a guess."""
        done, total = self.counts
        hint = " (--quick answers in seconds)" * (self._quick and seconds >= QUIET / 2)
        if not done or done >= total or self._spares:
            return hint if not done else ""
        left = min(seconds / done * (total - done), workers.time_left())
        if left < _LEAST_LEFT:
            return ""
        much = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"
        return f", about {much} left{hint * (left > _LONG_LEFT)}"

    def _bar(self, room: int) -> str:
        """How far it is as a picture, if it is known of how many and there is room."""
        done, total = self.counts
        cells = min(_BAR, room - 2)
        if not total or cells < _LEAST_BAR:
            return ""
        full = int(cells * min(1.0, (done + self._share) / total))
        done_, open_ = _BAR_SIGNS if (sys.stderr.encoding or "").lower() == "utf-8" else ("#", "-")
        return done_ * full + open_ * (cells - full) + " "

    def _back(self, width: int) -> str:
        """Codes that move to where drawing began, and clear all from there. A terminal that has
        become narrower since has wrapped the lines.
        """
        rows = sum(max(-(-length // width), 1) for length in self._lengths)
        return f"\r\033[{rows - 1}A\033[J" if rows > 1 else "\r\033[K"


def _size() -> tuple[int, int]:
    """Columns and lines of the terminal on stderr; that on stdout may be another, or none."""
    try:
        columns, lines = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):
        columns = lines = 0
    return (columns or 80, lines or 24)


_drawn: list[Progress] = []
"""All progress that may be drawn now."""


def say(text: str) -> None:
    """A line on stderr, above the progress of the work at hand."""
    for progress in _drawn:
        progress.erase()
    click.echo(legible(text), err=True)


def note(text: str) -> None:
    """A remark of simreduce's own on stderr."""
    say(f"simreduce: {text}")


def show_until_stopped(
    coming: Iterable[T],
    total: int,
    text: str,
    preview: Callable[[list[T]], Sequence[str]] = lambda _: (),
    enough: Callable[[Sequence[T]], object] = len,
) -> tuple[list[T], bool]:
    """The results until an interrupt, and whether these are all; says how far it is as `Progress`,
    with a `preview` of the results so far. Before these are `enough`, an interrupt is the caller's.
    """
    with Progress(text, preview) as progress:
        return workers.until_stopped(progress.watch(coming, total), enough), progress.complete
