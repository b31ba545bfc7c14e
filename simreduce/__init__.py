"""simreduce: which gradient reduction is fastest on this machine?

    import simreduce as sr
    plan = sr.compile("xring#2+packs=8", "resnet50", "dgx1v")
    assert not sr.verify(plan)
    result = sr.simulate(plan, "dgx1v", runtime="tensorflow")
    sr.rank("dgx1v", "resnet50").recommended

Names load their modules when first used, so that `import simreduce` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "__version__": "simreduce.version",
    "Disturbance": "simreduce.engine",
    "Fault": "simreduce.engine",
    "Scenario": "simreduce.study.scenario",
    "Setup": "simreduce.engine.setup",
    "Topology": "simreduce.topology",
    "algorithm": "simreduce.planners.algorithms",
    "bench": "simreduce.app.api",
    "compile": "simreduce.app.api",
    "fold": "simreduce.app.api",
    "layout": "simreduce.app.api",
    "load_calibration": "simreduce.app.api",
    "load_scenario": "simreduce.app.api",
    "load_topology": "simreduce.app.api",
    "load_workload": "simreduce.app.api",
    "open_sweep": "simreduce.app.api",
    "rank": "simreduce.app.api",
    "record": "simreduce.app.api",
    "repeat": "simreduce.app.api",
    "simulate": "simreduce.app.api",
    "run_sweep": "simreduce.app.api",
    "step": "simreduce.app.api",
    "verify": "simreduce.app.api",
    "wrong_elements": "simreduce.plan",
}
"""The module of each public name."""

if TYPE_CHECKING:
    from simreduce.app.api import (
        bench,
        compile,  # noqa: A004 - as re.compile
        fold,
        layout,
        load_calibration,
        load_scenario,
        load_topology,
        load_workload,
        open_sweep,
        rank,
        record,
        repeat,
        run_sweep,
        simulate,
        step,
        verify,
    )
    from simreduce.engine import Disturbance, Fault
    from simreduce.engine.setup import Setup
    from simreduce.plan import wrong_elements
    from simreduce.planners.algorithms import algorithm
    from simreduce.study.scenario import Scenario
    from simreduce.topology import Topology
    from simreduce.version import __version__ as __version__

__all__ = [
    "Disturbance",
    "Fault",
    "Scenario",
    "Setup",
    "Topology",
    "algorithm",
    "bench",
    "compile",
    "fold",
    "layout",
    "load_calibration",
    "load_scenario",
    "load_topology",
    "load_workload",
    "open_sweep",
    "rank",
    "record",
    "repeat",
    "run_sweep",
    "simulate",
    "step",
    "verify",
    "wrong_elements",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    did_you_mean = import_module("simreduce.errors").did_you_mean
    near = "" if name.startswith("_") else did_you_mean(name, __all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
