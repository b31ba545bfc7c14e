"""The command line: the only place that prints and exits. Commands load when they are invoked.

The entry point, the table of commands, and their help as data, so that --help imports none.

tests/app/cli/test_described.py says when it is not what the commands say, and writes it. Commands
list every fault of their options; groups know misspelt commands. Nothing heavy is loaded.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module, resources
from inspect import signature
from math import isfinite
from typing import Any, Literal

import click
from click.core import iter_params_for_processing
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    add_completion_class,
    split_arg_string,
)

from simreduce.app.cli.reply import STOPPED, OutputOption, Reply, check_outputs, interruptible, note
from simreduce.app.cli.terminal import complain, complain_of_all, fitted, legible
from simreduce.computing import workers
from simreduce.errors import Deadlock, DeviceError, InputError, cut, did_you_mean, quote
from simreduce.files import data_dir
from simreduce.files.formats.syntax import Faults
from simreduce.version import __version__

_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completes(names: Callable[[], Iterable[str]], *, files: bool = False) -> _Complete:
    """Completes names, and `files` where none begins so."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")] * files

    return complete


def names_or_files(*kinds: Literal["topologies", "scenarios"]) -> _Complete:
    """Completes shipped names, and files where none begins so."""
    return completes(
        lambda: sorted(file.stem for kind in kinds for file in data_dir(kind).glob("*.toml")),
        files=True,
    )


def _calibrations() -> list[str]:
    files = resources.files("simreduce").joinpath("files", "calibrations").iterdir()
    names = (file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
    return sorted(["nominal", *names])


calibrations = completes(_calibrations, files=True)
"""Completes shipped calibrations, and files where none begins so."""


def strategies(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Algorithms of all-reduce, behind those that stand before the last comma."""
    from simreduce.planners.algorithms import ALGORITHMS  # noqa: PLC0415 - takes time

    before, comma, last = incomplete.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{name}")
        for name in ("all", *ALGORITHMS)
        if name.startswith(last)
    ]


class Bash(BashComplete):
    """As click has it, for words with : and = too, where bash begins a new word."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' completion type
    local response=$(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete $1)
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == dir ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == file ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("$value")
        fi
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one that it is in."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() or not words else (words[:-1], words[-1])

    def format_completion(self, item: CompletionItem) -> str:
        """The type and the text that bash puts in place of its last word."""
        _, incomplete = self.get_completion_args()
        breaks = [
            incomplete.rfind(sign) for sign in os.environ.get("COMP_BREAKS", "") if sign in ":="
        ]
        cut = max(breaks, default=-1) + 1
        kept = item.value[cut:] if item.value.startswith(incomplete[:cut]) else item.value
        return f"{item.type},{kept}"


class Fish(FishComplete):
    """As click has it, for values and help with commas too."""

    source_template = FishComplete.source_template.replace("string split", "string split --max 1")


add_completion_class(Bash)
add_completion_class(Fish)


scenario_argument = click.argument("scenario", shell_complete=names_or_files("scenarios"))
topology_argument = click.argument("topology", shell_complete=names_or_files("topologies"))
question_argument = click.argument(
    "question",
    metavar="SCENARIO|TOPOLOGY",
    shell_complete=names_or_files("scenarios", "topologies"),
)


_FAULTS = "simreduce.faults"


class Command(click.Command):
    """A command that lists every option whose value has the wrong type, in one round."""

    def __init__(self, *args: Any, examples: str = "", **attrs: Any) -> None:
        """`examples` are command lines that work when they are pasted, one a line."""
        lines = [f"  {line.strip()}" for line in examples.strip().splitlines()]
        epilog = "\n".join(("\b", "Examples:", *lines)) if lines else None
        super().__init__(*args, **{"epilog": epilog, **attrs})
        self.examples = tuple(line.strip() for line in lines)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and give its reply; it knows nothing of `--json` and of files to write
        unless it asks. One that takes `faults` gets those of its options so far: it adds its own,
        and raises them before it does any work. Returns the exit status.
        """
        own = {each.name for each in self.params if isinstance(each, OutputOption)} | {"as_json"}
        values = {name: value for name, value in ctx.params.items() if name not in own}
        faults: Faults = ctx.meta[_FAULTS]
        check_outputs(faults)
        assert self.callback is not None  # noqa: S101 - only groups have none
        if "faults" in signature(self.callback).parameters:
            values["faults"] = faults
        else:
            faults.raise_any()
        try:
            found = ctx.invoke(self.callback, **values)
        except InputError as error:
            faults.problems += [each for each in error.problems if each not in faults.problems]
            if len(faults.problems) == len(error.problems):
                raise
        except Exception as error:
            if not faults.problems:  # else it had something in the place of what is wrong
                raise
            if isinstance(error, click.UsageError):
                faults.add("", error.message)
        faults.raise_any()
        return found.give() if isinstance(found, Reply) else found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, but click stops at the first fault: here the command goes on with
        something in the place of what is wrong, and lists its own faults too.
        """
        words, faults = list(args), Faults()
        try:
            rest = super().parse_args(ctx, args)
        except click.MissingParameter:
            raise
        except (click.BadParameter, InputError):
            rest = self._parse_all(ctx, words, faults)
        self._check_numbers(ctx, faults)
        ctx.meta[_FAULTS] = faults
        return rest

    def _parse_all(self, ctx: click.Context, words: list[str], faults: Faults) -> list[str]:
        """Parse every parameter, and note those that are wrong.

        InputError if one is missing: without it the command can find no more.
        """
        values, rest, order = self.make_parser(ctx).parse_args([*words])
        missing = False
        for param in iter_params_for_processing(order, self.get_params(ctx)):
            try:
                _, rest = param.handle_parse_result(ctx, values, rest)
            except click.MissingParameter:
                faults.add(param.make_metavar(ctx), "is missing")
                missing = True
            except (click.BadParameter, InputError) as error:
                name = next((each for each in param.opts if each in words), param.opts[0])
                if isinstance(error, InputError):
                    faults.problems += error.problems
                else:
                    faults.add(name, _reason(param.type, error))
                if param.expose_value:
                    ctx.params[param.name or ""] = _stand_in(ctx, param)
        if missing or rest:
            raise InputError(faults.problems)
        # click has a mark of its own for what is not given, until all is parsed.
        ctx.params = {
            name: None if type(value).__name__ == "Sentinel" else value
            for name, value in ctx.params.items()
        }
        return rest

    def _check_numbers(self, ctx: click.Context, faults: Faults) -> None:
        """Note `nan` and `inf`, which pass through click's ranges, and whole numbers beyond 64
        bits.
        """
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if isinstance(value, float) and not isfinite(value):
                faults.add(param.opts[0], f"must be a finite number, got {value}")
            elif isinstance(value, int) and abs(value) >= 1 << 63:
                faults.add(param.opts[0], f"must be less than 2^63, got {quote(value)}")
            else:
                continue
            ctx.params[param.name or ""] = _stand_in(ctx, param)


def _stand_in(ctx: click.Context, param: click.Parameter) -> Any:
    """A value for a parameter whose own is wrong, of which nobody complains."""
    default, kind = param.get_default(ctx), param.type
    if getattr(param, "multiple", False):
        return default or ()
    if default is None and isinstance(kind, click.IntRange | click.FloatRange):
        return kind.min and max(kind.min, 1)  # some refuse 0 for reasons of their own
    return 2.0 if default is None and kind is click.FLOAT else default


command = partial(click.command, cls=Command)
"""The decorator of every command."""


def _reason(kind: click.ParamType[Any], error: click.BadParameter) -> str:
    """Why a value is wrong: in our words if it should be a number, else in click's."""
    value = error.message.partition(" is not ")[0].strip("'")
    if isinstance(kind, click.IntRange):
        limits = f"of at least {kind.min}" if kind.max is None else f"from {kind.min} to {kind.max}"
        return f"must be a whole number {limits}, got {cut(value)}"
    if kind is click.INT or kind is click.FLOAT:
        return f"must be a {'whole ' * (kind is click.INT)}number, got {cut(value)}"
    return error.message


class CommandGroup(click.Group):
    """A group that says which command a misspelt one may have meant."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; with its usage, the nearest one if it names
        none.
        """
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(
                f"No such command {name!r}{did_you_mean(name, self.list_commands(ctx)) or '.'}"
            )
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """A group that imports a command only when it is used.

    `table` holds where each command is, and its line in --help. `default` is the command whose
    options may follow the group's name at once.
    """

    def __init__(
        self, *args: Any, table: Mapping[str, tuple[str, str]], default: str = "", **attrs: Any
    ) -> None:
        super().__init__(*args, **attrs)
        self.table = table
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it; without a name, the default command is meant."""
        if self.default and (
            not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        ):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Their names, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of this name."""
        if cmd_name not in self.table:
            return None
        module, attribute = self.table[cmd_name][0].split(":")
        found = getattr(import_module(module), attribute)
        assert isinstance(found, click.Command)  # noqa: S101
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin so, with their lines from the table."""
        found = [
            CompletionItem(name, help=text)
            for name, (_, text) in self.table.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Their lines from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


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
        "simreduce.app.cli.accuracy:nccl",
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
    workers.listeners[:] = [note]
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
