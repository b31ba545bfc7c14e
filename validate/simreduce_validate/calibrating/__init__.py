"""Constants from measurements: micro-plans that determine them, and the fit."""

from simreduce_validate.calibrating.constants import Constant, assembled
from simreduce_validate.calibrating.design import Design, design
from simreduce_validate.calibrating.fit import Fit, fitted
from simreduce_validate.calibrating.micro import Micro
from simreduce_validate.calibrating.ports import slow_ports

__all__ = ["Constant", "Design", "Fit", "Micro", "assembled", "design", "fitted", "slow_ports"]
