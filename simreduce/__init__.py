"""simreduce: which gradient reduction is fastest on this machine?

    import simreduce as sr
    machine = sr.load_topology("dgx1v")
    plan = sr.compile("xring#2+packs=8", sr.load_workload("resnet50"), sr.layout(machine))
    assert not sr.verify(plan)
    result = sr.simulate(plan, machine, runtime="tensorflow")

Names load their modules when first used, so that `import simreduce` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME = {
    "compile": ("simreduce.strategy", "compile_plan"),
    "fold": ("simreduce.topology", "fold"),
    "layout": ("simreduce.layouts", "layout"),
    "load_calibration": ("simreduce.calibrate", "load_calibration"),
    "load_topology": ("simreduce.topology", "load_topology"),
    "load_workload": ("simreduce.workload", "load_workload"),
    "record": ("simreduce.engine", "record"),
    "repeat": ("simreduce.plan", "repeat"),
    "simulate": ("simreduce.engine", "simulate"),
    "verify": ("simreduce.plan", "verify"),
    "wrong_elements": ("simreduce.plan", "wrong_elements"),
}

if TYPE_CHECKING:
    from simreduce.calibrate import load_calibration
    from simreduce.engine import record, simulate
    from simreduce.layouts import layout
    from simreduce.plan import repeat, verify, wrong_elements
    from simreduce.strategy import compile_plan as compile  # noqa: A004 - as re.compile
    from simreduce.topology import fold, load_topology
    from simreduce.workload import load_workload

__all__ = [
    "compile",
    "fold",
    "layout",
    "load_calibration",
    "load_topology",
    "load_workload",
    "record",
    "repeat",
    "simulate",
    "verify",
    "wrong_elements",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        module, attribute = _HOME[name]
        value = getattr(import_module(module), attribute)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
