"""What must be reduced: ordered gradients with names, elements and dtype."""

from simreduce.workload.load import load_workload, shipped
from simreduce.workload.workload import MOST_BYTES, Gradient, Workload

__all__ = ["MOST_BYTES", "Gradient", "Workload", "load_workload", "shipped"]
