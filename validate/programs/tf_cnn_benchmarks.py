"""tf_cnn_benchmarks: the manager of variables that the flags of a file make, on the CPU."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

SOURCE = os.environ["SOURCE"]
SHOWN = ("num_gpus", "variable_update", "gradient_repacking", "hierarchical_copy",
         "network_topology", "agg_small_grads_max_bytes", "agg_small_grads_max_group")  # fmt: skip


def main(folder: str) -> None:
    """Print what the benchmark understood of the file of a folder."""
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3",
                   "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    sys.path.insert(0, f"{SOURCE}/scripts/tf_cnn_benchmarks")
    text = Path(folder, "tf_cnn_benchmarks.args").read_text("utf-8")
    words = shlex.split(text, comments=True)
    with contextlib.redirect_stdout(io.StringIO()):
        import benchmark_cnn
        import flags
        from absl.flags import FLAGS

        flags.define_flags()
        FLAGS(["tf_cnn_benchmarks", *words, "--device=cpu", "--data_format=NHWC"])
        params = benchmark_cnn.setup(benchmark_cnn.make_params_from_flags())
        manager = benchmark_cnn.BenchmarkCNN(params).variable_mgr
    spec = getattr(manager, "_all_reduce_spec", None)
    ranges = [] if spec is None else spec if isinstance(spec, list) else [spec]
    understood = {name: getattr(params, name) for name in SHOWN}
    understood["manager"] = type(manager).__name__
    understood["ranges"] = [[each.alg, each.shards, each.limit] for each in ranges]
    commit = ["git", "-C", SOURCE, "rev-parse", "--short=9", "HEAD"]
    version = subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
    print(json.dumps({"version": version, "understood": understood}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
