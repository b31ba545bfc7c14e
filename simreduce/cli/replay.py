"""`simreduce replay TRACE...`: a recorded run on another machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from simreduce.calibrate import load_calibration
from simreduce.cli.completion import strategies
from simreduce.cli.group import command
from simreduce.cli.options import (
    calibration_option,
    check_outputs,
    echo_json,
    gpus_options,
    report_options,
    shape_of,
    write_output,
)
from simreduce.cli.progress import Progress
from simreduce.cli.setups import nccl_option, read_disturbance, read_nccl, slow_option
from simreduce.cli.terminal import show
from simreduce.errors import InputError
from simreduce.executions import read_executions
from simreduce.formats import Faults
from simreduce.layouts import layout
from simreduce.report.replay import replay_document, replay_text
from simreduce.setup import BY_STRATEGY, Setup
from simreduce.strategy import parse_strategy
from simreduce.textfiles import read_text
from simreduce.topology import load_topology
from simreduce.trace import replay_trace_text
from simreduce.training.replay import replay_execution


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
@click.option(
    "--trace",
    default=None,
    metavar="FILE",
    help="Also write the timeline of the replay; .gz: compressed; -: stdout.",
)
@report_options
def replay(traces: Sequence[str], trace: str | None, as_json: bool, **given: Any) -> int:
    """Run again what was recorded elsewhere: its compute as long as it took, its collectives as
    MACHINE would do them.

    TRACE is a Chakra execution trace of each rank (job.0.et job.1.et ...), a timeline of the
    PyTorch profiler, NCCL's log (NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL), or DDP's logging
    data as JSON. A rank that was not recorded keeps nobody waiting.
    """
    faults = Faults()
    faults.attempt("", check_outputs, {"--trace": trace}, as_json=as_json)
    groups = faults.attempt("", _read_groups, given["groups"])
    faults.attempt("--algo", parse_strategy, given["algo"])
    setup = _read_setup(faults, **given)
    execution = faults.attempt("", read_executions, traces, groups)
    if faults.problems or execution is None or setup is None:
        raise InputError(faults.problems)
    with Progress("replayed {} of {} nodes") as progress:
        found = replay_execution(execution, setup, given["algo"], progress)
    document = replay_document(found, setup, given["algo"]) if as_json or trace else {}
    if as_json:
        echo_json(document)
    else:
        show(replay_text(found, setup, given["algo"]), trace)
    if trace:
        write_output(trace, replay_trace_text(found, document))
    return 0


def _read_setup(
    faults: Faults,
    *,
    topology: str,
    ngpus: int | None,
    gpus: str | None,
    calibration: str | None,
    nccl: Sequence[str],
    slow: Sequence[str],
    **_: Any,
) -> Setup | None:
    machine = faults.attempt("", load_topology, topology)
    shape = faults.attempt("", shape_of, layout(machine), ngpus, gpus) if machine else None
    constants = faults.attempt("--calibration", load_calibration, calibration or "nominal")
    disturbance = faults.attempt("", read_disturbance, machine, None, None, slow, ())
    settings = read_nccl(faults, nccl)
    if not (machine and shape and constants and disturbance):
        return None
    return Setup(machine, BY_STRATEGY, constants, disturbance, shape, settings)


def _read_groups(path: str | None) -> dict[str, tuple[int, ...]]:
    """Ranks by the name of a process group."""
    if path is None:
        return {}
    try:
        document = json.loads(read_text(Path(path), InputError))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: is no JSON: {error}") from None
    faults = Faults(path)
    if not isinstance(document, dict) or not document:
        faults.add("", 'must be ranks by group, such as {"0": [0, 1]}')
        document = {}
    for name, ranks in document.items():
        numbers = isinstance(ranks, list) and all(
            type(rank) is int and 0 <= rank < 1 << 20 for rank in ranks
        )
        if not numbers or len(set(ranks)) != len(ranks) or not ranks:
            faults.add(name, "must be a list of ranks, each once, such as [0, 1]")
    faults.raise_any()
    return {name: tuple(ranks) for name, ranks in document.items()}
