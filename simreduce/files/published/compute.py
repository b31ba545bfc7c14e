"""Times of what one GPU computes in a training step, as `simreduce_validate.computing` measures it.

`compute.csv` has those of one H100 and one H200, by CUDA graphs; whole layers by eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simreduce.errors import InputError
from simreduce.files.formats import LINE, Faults, Field, Format, choice, text_of
from simreduce.files.formats.rows import read_csv
from simreduce.files.published.reading import text_of_rows

SOURCE = (
    "one H100 SXM and one H200 by themselves, driver 580.159.04, PyTorch 2.11 (CUDA 13.0),"
    " 2026-11-27: python -m simreduce_validate.computing"
)
"""Where the shipped times come from."""

PRODUCT, ATTENTION, MOVES, EMPTY, HOST, LAYERS = (
    "products of {} bits", "fused attention", "kernels that move bytes", "empty kernels",
    "kernels that the host launches", "layers of Llama",
)  # fmt: skip
KINDS = {
    "product": PRODUCT,
    "product_sustained": PRODUCT,
    **{
        f"attention{causal}_{way}": ATTENTION
        for causal in ("", "_causal")
        for way in ("forward", "backward")
    },
    **dict.fromkeys(
        (
            "residual", "times", "copy", "dropout", "softmax", "loss", "adamw", "silu",
            "gelu", "gelu_backward", "layer_norm", "layer_norm_backward", "rms_norm",
            "rms_norm_backward",
        ),
        MOVES,
    ),
    "kernel_in_graph": EMPTY,
    "linear_launched": HOST,
    **dict.fromkeys(("layers", "layers_forward", "layers_compiled"), LAYERS),
}  # fmt: skip
"""What is timed, by the group that it belongs to.

The shape of a product is rows x columns x inner; of attention sequences x tokens x heads x width of
a head; of layers their number, then tokens, width, heads, groups of them and inner width.
"""

_SIDES = {PRODUCT: 3, ATTENTION: 4, LAYERS: 6}


class TimedCompute(NamedTuple):
    """A kernel, or several, of a GPU: `seconds` in the median, `low` and `high` at 10 and 90 %."""

    gpu: str
    kind: str
    shape: tuple[int, ...]
    bits: int
    seconds: float
    low: float
    high: float

    @property
    def group(self) -> str:
        """Its group."""
        return KINDS[self.kind].format(self.bits)


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(map(int, text.split("x")))
    if min(shape) < 1:
        raise ValueError
    return shape


def _microseconds(text: str) -> float:
    seconds = float(text) * 1e-6
    if not 0.0 < seconds < 1e6:
        raise ValueError
    return seconds


_TIME = text_of(_microseconds, "a time in us", "12.5")
ROW = Format(
    "row",
    "A kernel that was timed.",
    Field("gpu", LINE, "The model of the GPU.", required=True),
    Field("kind", choice(list(KINDS), "kind"), "What was timed.", required=True),
    Field("shape", text_of(_shape, "whole numbers joined by x", "8192x4096"), "Its shape.",
          required=True),
    Field("bits", text_of(int, "whole bits", "16"), "Bits of its operands.", required=True),
    Field("time_us", _TIME, "The median.", required=True),
    Field("low_us", _TIME, "The 10th percentile.", required=True),
    Field("high_us", _TIME, "The 90th percentile.", required=True),
)  # fmt: skip


def timed_compute(file: str = "") -> Sequence[TimedCompute]:
    """The times in a file, or those that are shipped. InputError lists every fault."""
    faults = Faults(file)
    content = text_of_rows(file, "compute.csv")
    lines = read_csv(content, ROW.keys, ",".join(ROW.keys), faults, InputError)
    rows = [(place, TimedCompute(*ROW.read(row, faults, place).values())) for place, row in lines]
    for place, row in rows:
        sides = row.kind and row.shape and _SIDES.get(KINDS[row.kind])
        if sides and len(row.shape) != sides:
            faults.add(place, f"shape: {row.kind} has {sides} sides, not {len(row.shape)}")
    faults.raise_any()
    return [row for _, row in rows]
