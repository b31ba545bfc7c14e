"""Constants from measurements: micro-plans that determine them, and the fit."""

from simreduce_validate.calibrating.constants import Constant, assembled
from simreduce_validate.calibrating.design import Cores, Design, cores_of, design
from simreduce_validate.calibrating.fit import Fit, fitted
from simreduce_validate.calibrating.micro import Micro
from simreduce_validate.calibrating.ports import slow_ports

__all__ = [
    "Constant",
    "Cores",
    "Design",
    "Fit",
    "Micro",
    "assembled",
    "cores_of",
    "design",
    "fitted",
    "slow_ports",
]
