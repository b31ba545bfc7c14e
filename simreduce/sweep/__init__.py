"""Many questions that differ in a few keys: planned, computed anywhere, and kept in a database."""

from simreduce.sweep.cells import BENCH, KINDS, REPLICAS, RUN, STEP, Cell, Kind, make_cell
from simreduce.sweep.columns import COLUMNS, UNITS
from simreduce.sweep.design import Sample
from simreduce.sweep.evaluate import evaluate
from simreduce.sweep.files import SWEEP, Specification, read_specification
from simreduce.sweep.opening import IN_MEMORY
from simreduce.sweep.question import Question, read_question
from simreduce.sweep.rows import NAMES, Row
from simreduce.sweep.running import Runner
from simreduce.sweep.store import Answer, Planned, Store, Sweep

__all__ = [
    "BENCH",
    "COLUMNS",
    "IN_MEMORY",
    "KINDS",
    "NAMES",
    "REPLICAS",
    "RUN",
    "STEP",
    "SWEEP",
    "UNITS",
    "Answer",
    "Cell",
    "Kind",
    "Planned",
    "Question",
    "Row",
    "Runner",
    "Sample",
    "Specification",
    "Store",
    "Sweep",
    "evaluate",
    "make_cell",
    "read_question",
    "read_specification",
]
