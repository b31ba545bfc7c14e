"""`simreduce replay TRACE...`: a recorded run on another machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from simreduce.app.cli.group import command, strategies
from simreduce.app.cli.options import calibration_option, gpus_options
from simreduce.app.cli.reply import Progress, Reply, output_option, report_options
from simreduce.app.cli.setups import nccl_option, read_setup, slow_option
from simreduce.errors import InputError
from simreduce.files.formats import Faults
from simreduce.files.formats.syntax import read_json
from simreduce.files.textfiles import read_text
from simreduce.planners.strategy import parse_strategy
from simreduce.report.replay import REPLAY, Replayed, replay_text
from simreduce.report.trace import executed_events, trace_text
from simreduce.study.scenario import CALL_COST
from simreduce.training.executions import read_executions
from simreduce.training.recorded import replay_execution


@command(
    examples="""
    echo '{"world_size": 8, "bucket_sizes": "4194304, 25165824"}' > ddp.json
    simreduce replay ddp.json --topology dgx1v
    """
)
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option("--topology", required=True, metavar="MACHINE", help="Run it on this machine.")
@click.option(
    "--algo",
    default="nccl",
    shell_complete=strategies,
    metavar="STRATEGY",
    help="Reduce by this strategy; default nccl.",
)
@click.option(
    "--groups",
    default=None,
    metavar="FILE",
    help='Read the ranks of process groups from this JSON: {"0": [0, 1], "1": [2, 3]}.',
)
@gpus_options
@calibration_option(None, "nominal")
@nccl_option()
@slow_option
@output_option(
    "--trace", about="Also write the timeline of the replay; .gz: compressed; -: stdout."
)
@report_options
def replay(
    faults: Faults,
    traces: Sequence[str],
    topology: str,
    algo: str,
    groups: str | None,
    **given: Any,
) -> Reply:
    """Run again what was recorded elsewhere: its compute as long as it took, its collectives as
    MACHINE would do them.

    TRACE is a Chakra execution trace of each rank (job.0.et job.1.et ...), a timeline of the
    PyTorch profiler, NCCL's log (NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL), or DDP's logging
    data as JSON. A rank that was not recorded keeps nobody waiting.
    """
    ranks = faults.attempt("", _read_groups, groups)
    faults.attempt("--algo", parse_strategy, algo)
    setup = read_setup(faults, topology, given)
    execution = faults.require(faults.attempt("", read_executions, traces, ranks))
    setup = faults.require(setup).but(call_cost=CALL_COST)
    with Progress("replayed {} of {} nodes") as progress:
        found = replay_execution(execution, setup, algo, progress.watch)
    replayed = Replayed(found, setup, algo)
    document = partial(REPLAY.write, replayed)
    return Reply(
        partial(replay_text, replayed),
        document,
        files={"trace": lambda: trace_text(document(), executed_events(found.ran))},
    )


def _read_groups(path: str | None) -> dict[str, tuple[int, ...]]:
    """Ranks by the name of a process group."""
    if path is None:
        return {}
    document = read_json(read_text(Path(path), InputError), f"{path}: is no JSON")
    faults = Faults(path)
    if not isinstance(document, dict) or not document:
        faults.add("", 'must be ranks by group, such as {"0": [0, 1]}')
        document = {}
    for name, ranks in document.items():
        numbers = isinstance(ranks, list) and all(
            type(rank) is int and 0 <= rank < 1 << 20 for rank in ranks
        )
        once = numbers and ranks and len(set(ranks)) == len(ranks)
        faults.check(once, name, "must be a list of ranks, each once, such as [0, 1]")
    faults.raise_any()
    return {name: tuple(ranks) for name, ranks in document.items()}
