"""The entry point, the table of commands, and their help as data, so that --help imports none.

tests/app/cli/test_described.py says when it is not what the commands say, and writes it.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import click

from simreduce.app.cli.group import LazyGroup
from simreduce.app.cli.reply import STOPPED, interruptible, say
from simreduce.app.cli.terminal import complain, complain_of_all, fitted, legible
from simreduce.computing import workers
from simreduce.errors import Deadlock, DeviceError, InputError
from simreduce.version import __version__

_FILE = "described.json"

Record = Mapping[str, Any]
"""usage, help, options, epilog, and of a group its commands: those that are imported when they are
used (`lazy`) by their lines, others by their records.
"""


def find(words: Sequence[str], help_names: Sequence[str]) -> tuple[str, click.Command] | None:
    """The command that these words ask for help, with its name; None if they do not."""
    before = words[: words.index("--")] if "--" in words else words
    if not set(before) & set(help_names):
        return None
    found = json.loads(resources.files(__package__).joinpath(_FILE).read_text("utf-8"))
    path: list[str] = []
    for word in words:
        if word not in found.get("commands", {}):
            break
        found = found["commands"][word]
        path.append(word)
    return (" ".join(path), _Described(path[-1], found)) if path else None


class _Described(click.Command):
    """A command that can do nothing but print its help."""

    def __init__(self, name: str, record: Record) -> None:
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__(
            name, help=record["help"], epilog=record["epilog"], context_settings=settings
        )
        self._record = record

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [*self._record["usage"]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Options"):
            formatter.write_dl([(left, right) for left, right in self._record["options"]])
        commands = self._record.get("commands", {})
        if not commands:
            return
        limit = formatter.width - 6 - max(map(len, commands))
        short = [
            (name, click.Command(name, help=each["help"]).get_short_help_str(limit))
            for name, each in commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, text in self._record.get("lazy", short)])


_COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": (
        "simreduce.app.cli.run:run",
        "Rank every strategy for a workload on a topology, recommend one.",
    ),
    "tune": (
        "simreduce.app.cli.run:tune",
        "The best setting for PyTorch, Horovod, NCCL and others.",
    ),
    "bench": ("simreduce.app.cli.bench:bench", "A table over sizes, as nccl-tests prints it."),
    "explain": (
        "simreduce.app.cli.explain:explain",
        "What bounds the time, and what would help, tried out.",
    ),
    "step": (
        "simreduce.app.cli.run:step",
        "A training step, or synchronous replicas with stragglers.",
    ),
    "jobs": (
        "simreduce.app.cli.run:jobs",
        "Several jobs and other traffic on one machine.",
    ),
    "capacity": (
        "simreduce.app.cli.sweep:capacity",
        "The cheapest machines and network that meet a target.",
    ),
    "prices": ("simreduce.app.cli.sweep:prices", "Price lists with their sources and dates."),
    "sweep": ("simreduce.app.cli.sweep:sweep", "A question over many values, into a database."),
    "table": (
        "simreduce.app.cli.sweep:table",
        "The rows of a sweep: filter, group, pivot, export.",
    ),
    "serve": ("simreduce.app.cli.report:serve", "A local page where the question can be changed."),
    "report": (
        "simreduce.app.cli.report:report",
        "One HTML file with the answer and all behind it.",
    ),
    "plot": (
        "simreduce.app.cli.sweep:plot",
        "Lines, a heat map or a Pareto frontier of a sweep.",
    ),
    "compare": (
        "simreduce.app.cli.sweep:compare",
        "Which answers changed between two sweeps.",
    ),
    "trace": ("simreduce.app.cli.explain:trace", "A timeline for Perfetto and chrome://tracing."),
    "replay": (
        "simreduce.app.cli.run:replay",
        "A recorded run (Chakra, PyTorch, NCCL) on a machine.",
    ),
    "export": (
        "simreduce.app.cli.export:export",
        "Settings for NCCL, PyTorch, Horovod and others.",
    ),
    "calibrate": (
        "simreduce_validate.calibrate:calibrate",
        "Learn the constants of real devices, through TensorFlow.",
    ),
    "validate": (
        "simreduce_validate.validate:validate",
        "Time plans on real devices beside what is predicted.",
    ),
    "model": (
        "simreduce_validate.model:model",
        "The layers of a Keras or PyTorch model, as a workload.",
    ),
    "accuracy": (
        "simreduce.app.cli.accuracy:accuracy",
        "How far predictions are from published timings.",
    ),
    "verify": ("simreduce.app.cli.explain:verify", "Prove that plans do what they promise."),
    "nccl": (
        "simreduce.app.cli.nccl:nccl",
        "What NCCL itself chooses: channels, algorithm, protocol.",
    ),
    "topo": ("simreduce.app.cli.topo:topo", "List and show machines."),
    "schema": (
        "simreduce.app.cli.explain:schema",
        "The keys and units of a document or a file, as JSON Schema.",
    ),
}
"""Where each command is, and its line in --help, which imports none of them."""


class _Commands(LazyGroup):
    """All commands; whoever asks one for help imports none."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first arguments name, or what is known of it without it."""
        if described := find(args, ctx.help_option_names):
            return (*described, ["--help"])
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, table=_COMMANDS)
@click.version_option(__version__, prog_name="simreduce")
def cli() -> None:
    """Which gradient reduction is fastest on this machine? Plans that are proved, simulated and
    run.
    """


def main(command: click.Command = cli) -> None:
    """Run a command line. Exit status 0 done, 1 a check failed, 2 bad input, 130 stopped."""
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):  # which cannot write the name of any file as it is
        stdout.reconfigure(errors="backslashreplace")
    workers.listeners[:] = [lambda text: say(f"simreduce: {text}")]
    try:
        with interruptible(), fitted():
            status = command.main(standalone_mode=False, help_option_names=["-h", "--help"])
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit as end:
        # click exits by itself when the reader of a pipe has gone, after it has put a stdout that
        # is silent about it.
        status = end.code if sys.stdout is stdout else 0
    except click.exceptions.Abort:
        click.echo("simreduce: stopped before there was a result", err=True)
        status = STOPPED
    except click.ClickException as error:
        with io.StringIO() as text:
            error.show(text)
            click.echo(legible(text.getvalue()), nl=False, err=True)
        status = 2
    except InputError as error:
        complain_of_all(error.problems)
        status = 2
    except (Deadlock, DeviceError) as error:
        complain(str(error))
        status = 1
    except OSError as error:  # Python would complain again when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
        if not isinstance(error, BrokenPipeError):  # a full disk behind stdout
            words = f"the output cannot be written: {error.strerror or error}"
            click.echo(f"simreduce: {words}", err=True)
            status = 2
    sys.exit(status if isinstance(status, int) else 0)
