"""DeepSpeed: `ds_config.json` by its class of configurations.

`ask.json` has the number of data parallel ranks, and the names of what is asked: attributes of
`DeepSpeedConfig` and, after `zero.`, of its ZeRO section.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config if isinstance(config, int | float | str | None) else str(config)


def main(folder: str) -> None:
    """Print what DeepSpeed understood of the file of a folder."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    given = json.loads(Path(folder, "ask.json").read_text("utf-8"))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        import deepspeed
        from deepspeed.runtime.config import DeepSpeedConfig

        alone = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False, **alone)
        ranks = SimpleNamespace(get_data_parallel_world_size=lambda: given["data_parallel"])
        config = DeepSpeedConfig(str(Path(folder, "ds_config.json")), mpu=ranks)
        understood = {name: _value(config, name) for name in given["names"]}
    print(said.getvalue(), file=sys.stderr)
    print(json.dumps({"version": deepspeed.__version__, "understood": understood}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
