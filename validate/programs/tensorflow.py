"""TensorFlow: the strategy that `simreduce_strategy.py` makes on two logical CPU devices."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
from pathlib import Path

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
import tensorflow as tf


def main(folder: str) -> None:
    """Print what TensorFlow made of the module of a folder."""
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with contextlib.redirect_stdout(io.StringIO()):
        strategy = runpy.run_path(str(Path(folder, "simreduce_strategy.py")))["strategy"]
    understood = {"class": type(strategy).__name__}
    extended = strategy.extended
    options = getattr(extended, "_communication_options", None)
    if understood["class"] == "MirroredStrategy":
        ops = extended._cross_device_ops
        understood |= {"ops": type(ops).__name__, "num_packs": getattr(ops, "_num_packs", None),
                       "reduce_to_device": getattr(ops, "reduce_to_device", None)}  # fmt: skip
    else:
        understood |= {"implementation": options.implementation.value,
                       "bytes_per_pack": options.bytes_per_pack}  # fmt: skip
    print(json.dumps({"version": tf.__version__, "understood": understood}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
