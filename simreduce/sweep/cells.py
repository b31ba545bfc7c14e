"""A cell of a sweep: a question small enough to send anywhere, and its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from simreduce.sweep.contents import code, contents, digest_of

Kind = Literal["bench", "run", "step", "replicas"]
BENCH: Final = "bench"
RUN: Final = "run"
STEP: Final = "step"
REPLICAS: Final = "replicas"
KINDS: tuple[Kind, ...] = ("bench", "run", "step", "replicas")
"""What is asked: one collective of one tensor, a workload's reduction, a training step, updates of
synchronous replicas.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One question. `document` holds JSON types only: for `bench` the keys of `BENCH`, else those
    of `CASE`, with the tables of a scenario. Files are looked for in `folder` first.

    `contents` has digests of the files that it names. `digest` covers whatever changes the answer:
    the document, these contents, the calibration's constants, and the sources of simreduce.
    """

    kind: Kind
    document: Mapping[str, Any]
    folder: str = ""
    contents: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    digest: str = ""

    @property
    def machine(self) -> tuple[str, str]:
        """The machine as text, with overrides: cells with equal ones share what is built of it."""
        table = self.table
        changed = [table.get(key) for key in ("topology_overrides", "link_factors")]
        return str(table.get("topology")), digest_of(changed)

    @property
    def table(self) -> Mapping[str, Any]:
        """The keys that name files."""
        return self.document if self.kind == BENCH else self.document["scenario"]

    def to_json(self) -> dict[str, Any]:
        """The cell as JSON types; `Cell(**...)` reads them."""
        return {name: getattr(self, name) for name in self.__slots__}


def make_cell(kind: Kind, document: Mapping[str, Any], folder: str = "") -> Cell:
    """The cell of a document, with its digests."""
    table = document if kind == BENCH else document["scenario"]
    found, version = contents(table, folder), code()
    digest = digest_of([kind, document, found, version])
    return Cell(kind, document, folder, found, version, digest)
