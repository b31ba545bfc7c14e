"""A cell's answer as plain values, equal to the bit wherever it is computed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self

DONE: Final = "done"
REFUSED: Final = "refused"
TOO_LARGE: Final = "too_large"
STUCK: Final = "stuck"
KILLED: Final = "killed"
FAILED: Final = "failed"
State = Literal["done", "refused", "too_large", "stuck", "killed", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is known of one cell; None where a figure does not apply. SI units throughout.

    `state` is `done`; or why there is no answer, which `reason` says: the machine or the file
    `refused` it, it is `too_large` for the memory, its plan is `stuck` for ever, it `killed` every
    worker that tried it, or simreduce `failed`. `sweep/columns.py` says what each value is.
    """

    state: State
    reason: str = ""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    chosen: str | None = None
    method: str | None = None
    runtime: str | None = None
    ranks: int | None = None
    nbytes: int | None = None
    algbw: float | None = None
    busbw: float | None = None
    floor: float | None = None
    bound: str | None = None
    bound_share: float | None = None
    link: str | None = None
    compute: float | None = None
    exposed: float | None = None
    communication: float | None = None
    update: float | None = None
    launch: float | None = None
    efficiency: float | None = None
    samples_per_second: float | None = None
    gradients_per_second: float | None = None
    dropped: float | None = None
    memory: int | None = None
    transfers: int | None = None
    wrong: int | None = None
    machines: int | None = None
    topology: str | None = None
    topology_digest: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Every value by name, in JSON types."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """The row of these values; other keys are left out."""
        return cls(**{name: values[name] for name in NAMES if name in values})


NAMES = tuple(field.name for field in fields(Row))
"""Columns of a row, in order."""
