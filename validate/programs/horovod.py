"""Horovod: the options of `horovodrun` that set the variables of `horovod.env`.

Its parser and its settings of variables run, not its library, which is not built here.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

from horovod.runner.common.util import config_parser
from horovod.runner.launch import parse_args

OPTIONS = {
    config_parser.HOROVOD_FUSION_THRESHOLD: ("fusion-threshold-mb", 1 << 20),
    config_parser.HOROVOD_CYCLE_TIME: ("cycle-time-ms", 1),
    config_parser.HOROVOD_HIERARCHICAL_ALLREDUCE: ("hierarchical-allreduce", None),
    config_parser.HOROVOD_HIERARCHICAL_ALLGATHER: ("hierarchical-allgather", None),
}
"""The option for a variable, and how many of the variable's units are one of its own."""


def main(folder: str) -> None:
    """Print horovodrun's options for the file of a folder, and whether they set the same."""
    text = Path(folder, "horovod.env").read_text("utf-8")
    given = dict(re.findall(r"^(\w+)=(\S+)$", text, re.MULTILINE))
    words = []
    for name, value in given.items():
        option, unit = OPTIONS[name]
        if unit:
            words += [f"--{option}", f"{float(value) / unit:g}"]
        else:
            words.append(f"--{option}" if value == "1" else f"--no-{option}")
    sys.argv = ["horovodrun", "-np", "1", *words, "python", "train.py"]
    arguments, sets = parse_args(), {}
    config_parser.set_env_from_args(sets, arguments)
    understood = {option.replace("-", "_"): getattr(arguments, option.replace("-", "_"))
                  for option, _ in (OPTIONS[name] for name in given)}  # fmt: skip
    numbers = ({n: float(value) for n, value in each.items()} for each in (sets, given))
    understood["sets"] = "the same" if next(numbers) == next(numbers) else sets
    print(json.dumps({"version": version("horovod"), "understood": understood}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
