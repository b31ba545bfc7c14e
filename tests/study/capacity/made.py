"""Candidates and price lists made for tests."""

from __future__ import annotations

from types import MappingProxyType

from hypothesis import strategies as st

from simreduce.study.capacity.choose import CapacityCandidate, CapacityTarget, Configuration
from simreduce.study.capacity.price_list import PriceItem, PriceList
from simreduce.study.sweep import Figures

NAMES = ("machines.a.price", "machines.b.price", "energy")


def candidate(name: str, step: float = 1.0, nodes: int = 1, **more: object) -> CapacityCandidate:
    """A candidate of a machine, whose step is half compute and half exposed."""
    values = {
        "key": Configuration(name, "m", str(nodes), "", "ddp", "nccl", "1"),
        "nodes": nodes,
        "devices": nodes,
        "samples": 10 * nodes,
        "step": step,
        "simulated": step,
        "compute": step / 2,
        "exposed": step / 2,
        "communication": step / 2,
        "unmoved": step / 2,
        "goodput": 1.0,
        "quantities": {},
        "row": Figures(state="done"),
    }
    return CapacityCandidate(**values | more)


def price_list(**values: float) -> PriceList:
    """Prices per hour by name."""
    items = {name: PriceItem(name, value, "USD/h") for name, value in values.items()}
    return PriceList("", "", "USD", MappingProxyType(items))


_AMOUNT = st.floats(0.01, 100.0).map(lambda value: round(value, 3))


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[CapacityCandidate], PriceList, CapacityTarget]:
    """Some candidates that pay for some of three items, prices, and a target that some may meet."""
    count = draw(st.integers(1, 7))
    candidates = [
        candidate(
            f"c{i}",
            step=draw(_AMOUNT),
            nodes=draw(st.integers(1, 4)),
            goodput=draw(st.sampled_from([1.0, 0.9, 0.5])),
            quantities=draw(
                st.dictionaries(st.sampled_from(NAMES), _AMOUNT, min_size=1, max_size=3)
            ),
        )
        for i in range(count)
    ]
    prices = price_list(**{name: draw(_AMOUNT) for name in NAMES})
    optional = st.none() | _AMOUNT
    target = CapacityTarget(
        samples=3600.0,
        step_time=draw(optional),
        efficiency=draw(st.none() | st.sampled_from([0.2, 0.45, 0.5])),
        time=draw(st.none() | _AMOUNT.map(lambda value: 1e3 * value)),
        budget=draw(st.none() | _AMOUNT.map(lambda value: 10 * value)),
        hourly=draw(st.none() | _AMOUNT.map(lambda value: 10 * value)),
        minimise=draw(st.sampled_from(["cost", "hourly", "time"])),
    )
    return candidates, prices, target
