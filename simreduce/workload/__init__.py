"""What must be reduced: ordered gradients with names, elements and dtype."""

from simreduce.workload.load import load_workload, shipped
from simreduce.workload.workload import Gradient, Workload

__all__ = ["Gradient", "Workload", "load_workload", "shipped"]
