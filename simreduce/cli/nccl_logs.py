"""`simreduce calibrate --from-nccl-tests LOG... --topology T`: no device and no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simreduce.accuracy.from_logs import fit_logs, fitted_document, fitted_lines
from simreduce.calibrate import to_toml
from simreduce.calibrate.nccl_tests import read_nccl_log
from simreduce.cli.options import echo_json
from simreduce.cli.progress import Progress
from simreduce.cli.terminal import show
from simreduce.errors import CalibrationError, InputError, did_you_mean
from simreduce.formats import Faults
from simreduce.nccl import DEFAULTS
from simreduce.outputs import write_file
from simreduce.published import COLLECTIVES
from simreduce.textfiles import read_text
from simreduce.topology import load_topology


def calibrate_from_logs(
    logs: Sequence[str], machine: str | None, collective: str, path: Path, *, as_json: bool
) -> int:
    """Fit NCCL's constants to logs, keep them at `path` and print them."""
    faults = Faults()
    if not logs:
        faults.add("--from-nccl-tests", "name one log or more")
    if machine is None:
        faults.add("--from-nccl-tests", "needs --topology, the machine of the logs")
    if collective and collective not in COLLECTIVES:
        near = did_you_mean(collective, COLLECTIVES) or f"; known are {', '.join(COLLECTIVES)}"
        faults.add(f"--collective {collective}", f"unknown{near}")
    topology = machine and faults.attempt("", load_topology, machine)
    read = [
        log
        for name in logs
        if (text := faults.attempt("", read_text, Path(name), CalibrationError)) is not None
        and (log := faults.attempt("", read_nccl_log, text, name)) is not None
    ]
    if faults.problems or not topology:
        raise InputError(faults.problems)
    with Progress("fitting"):
        found = fit_logs(read, topology, DEFAULTS, collective, path.stem)
    write_file(str(path), [to_toml(found.calibration)])
    if as_json:
        echo_json(fitted_document(found, str(path)))
    else:
        show("\n".join(fitted_lines(found, str(path))))
    return 0
