"""Where cells are computed. An engine takes cells, and yields their answers in any order."""

from simreduce.study.sweep.engines.engine import (
    MOST_DEATHS,
    Batches,
    Engine,
    EngineGone,
    Here,
    Processes,
    evaluate_timed,
)

__all__ = [
    "MOST_DEATHS",
    "Batches",
    "Engine",
    "EngineGone",
    "Here",
    "Processes",
    "evaluate_timed",
]
