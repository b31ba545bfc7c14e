"""Many questions that differ in a few keys: planned, computed anywhere, and kept in a database."""

from simreduce.study.sweep.cells import (
    BENCH,
    COLUMNS,
    JOBS,
    KINDS,
    NAMES,
    REPLICAS,
    RUN,
    STEP,
    UNITS,
    Cell,
    Figures,
    Kind,
    make_cell,
    objective,
)
from simreduce.study.sweep.evaluate import evaluate
from simreduce.study.sweep.grid import SWEEP, Sample, Specification, read_specification
from simreduce.study.sweep.question import SweepQuestion, read_question
from simreduce.study.sweep.running import CellRunner, running
from simreduce.study.sweep.store import IN_MEMORY, CellAnswer, Planned, Store, Sweep

__all__ = [
    "BENCH",
    "COLUMNS",
    "IN_MEMORY",
    "JOBS",
    "KINDS",
    "NAMES",
    "REPLICAS",
    "RUN",
    "STEP",
    "SWEEP",
    "UNITS",
    "Cell",
    "CellAnswer",
    "CellRunner",
    "Figures",
    "Kind",
    "Planned",
    "Sample",
    "Specification",
    "Store",
    "Sweep",
    "SweepQuestion",
    "evaluate",
    "make_cell",
    "objective",
    "read_question",
    "read_specification",
    "running",
]
