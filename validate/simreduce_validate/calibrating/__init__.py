"""Constants from measurements: micro-plans that determine them, and the fit."""

from simreduce.engine.calibrate.fit import Fit, FreeConstant, fit_constants, fit_roughly
from simreduce_validate.calibrating.constants import assemble
from simreduce_validate.calibrating.design import Cores, Design, cores_of, design
from simreduce_validate.calibrating.micro import Micro
from simreduce_validate.calibrating.ports import slow_ports

__all__ = [
    "Cores",
    "Design",
    "Fit",
    "FreeConstant",
    "Micro",
    "assemble",
    "cores_of",
    "design",
    "fit_constants",
    "fit_roughly",
    "slow_ports",
]
