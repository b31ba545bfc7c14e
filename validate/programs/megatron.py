"""Megatron-LM: `megatron.args` by its parser and its checks, with the variables of `megatron.env`.

The checks ask the GPU for its generation; they get Hopper's, which needs the variables. `ask.json`
has the number of ranks, and arguments that a job adds of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

HOPPER = SimpleNamespace(major=9, minor=0)
SOURCE = os.environ["SOURCE"]
OWN = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "1024", "--train-iters",
       "10", "--lr", "1e-4"]  # fmt: skip


def _shell(text: str) -> str:
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout


def _parsed(words: list[str], given: dict[str, Any]) -> dict[str, Any]:
    from megatron.training.arguments import parse_args, validate_args

    sys.argv = ["pretrain_gpt.py", *words, *OWN]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        args = parse_args()
        validate_args(args)
    found = {name: getattr(args, name) for name in given["names"]}
    return {name: value if isinstance(value, int | float | str | list | None) else str(value)
            for name, value in found.items()}  # fmt: skip


def main(folder: str) -> None:
    """Print what Megatron-LM understood of the files of a folder."""
    os.chdir(folder)
    given = json.loads(Path("ask.json").read_text("utf-8"))
    text = Path("megatron.args").read_text("utf-8")
    words = _shell(f"printf '%s\\n' {text}").splitlines()
    sys.path.insert(0, SOURCE)
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(given["ranks"])}
    for call, value in (("is_available", True), ("get_device_capability", (9, 0)),
                        ("device_count", 8), ("get_device_properties", HOPPER)):  # fmt: skip
        setattr(torch.cuda, call, lambda *_, value=value: value)
    environment = Path("megatron.env")
    without = "runs"
    if environment.exists():
        try:
            _parsed(words, given)
        except (AssertionError, ValueError, RuntimeError) as error:
            without = "stops"
            print(error, file=sys.stderr)
        os.environ |= dict(
            re.findall(r"^(\w+)=(\S+)$", environment.read_text("utf-8"), re.MULTILINE)
        )
    understood = {**_parsed(words, given), "without its variables": without}
    tag = ["git", "-C", SOURCE, "describe", "--tags"]
    version = subprocess.run(tag, capture_output=True, text=True, check=True).stdout.strip()
    print(json.dumps({"version": version, "understood": understood}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
