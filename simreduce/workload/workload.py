"""The gradient list."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce import dtypes, units
from simreduce.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient: `elements` of the dtype with code `dtype` (see `simreduce.dtypes`)."""

    name: str
    elements: int
    dtype: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of one device's copy."""
        return self.elements * dtypes.SIZES[self.dtype]


MOST_BYTES = 2**50
"""More than any device holds; addresses and times of repeated steps stay far from the ends of their
types.
"""


@dataclass(frozen=True, slots=True, repr=False)
class Workload:
    """Gradients in the order in which the framework lists its variables.

    Those of a recorded job are whole buckets, as finer ones are not known. Then `finest` is the
    size in bytes below which no other buckets can be made of them; else it is 0.
    """

    name: str
    gradients: tuple[Gradient, ...]
    finest: int = 0

    def __post_init__(self) -> None:
        if not self.gradients:
            raise WorkloadError(f"{self.name}: there is no gradient to reduce")
        if self.nbytes > MOST_BYTES:
            raise WorkloadError(f"{self.name}: more than 1 PiB of gradients")

    def __repr__(self) -> str:
        count = units.plural(len(self.gradients), "gradient")
        return f"<Workload {self.name}: {count}, {units.format_size(self.nbytes)}>"

    @property
    def elements(self) -> int:
        """Elements of all gradients."""
        return sum(g.elements for g in self.gradients)

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients of one device: the S of algbw = S / time."""
        return sum(g.nbytes for g in self.gradients)
