"""Gradients to reduce, in order, with names, elements and dtype; and the models they belong to.

A model is given layer by layer.
"""

from simreduce.workload.decoder import Sequences
from simreduce.workload.loader import (
    GRADIENTS,
    MODEL,
    load_decoder,
    load_model,
    load_workload,
    model_text,
    shipped,
)
from simreduce.workload.workload import (
    ACTIVATION_SOURCES,
    MOST_BYTES,
    Gradient,
    Kept,
    Layer,
    Model,
    Workload,
    of_list,
)

__all__ = [
    "ACTIVATION_SOURCES",
    "GRADIENTS",
    "MODEL",
    "MOST_BYTES",
    "Gradient",
    "Kept",
    "Layer",
    "Model",
    "Sequences",
    "Workload",
    "load_decoder",
    "load_model",
    "load_workload",
    "model_text",
    "of_list",
    "shipped",
]
