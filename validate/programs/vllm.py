"""vLLM: `vllm.env` by its own check of variables, its `envs`, and the names in its kernels."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

SHOWN = ("VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_USE_NCCL_SYMM_MEM")


def main(folder: str) -> None:
    """Print what vLLM understood of the file of a folder."""
    shell = "env -i sh -c 'set -a; . ./vllm.env; env'"
    text = subprocess.run(
        ["sh", "-c", shell], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    given = dict(re.findall(r"^((?:VLLM|NCCL)_\w+)=(.*)$", text, re.MULTILINE))
    os.environ |= given
    from vllm import envs
    from vllm.platforms.interface import Platform

    understood = {name: getattr(envs, name) for name in SHOWN}
    [home] = find_spec("vllm").submodule_search_locations
    kernels = b"".join(each.read_bytes() for each in Path(home).glob("_C*.so"))
    understood["unknown"] = []
    for name in given:
        os.environ.pop(name)
    for name, value in given.items():
        os.environ[name] = value
        try:
            Platform.validate_environ(hard_fail=True)
        except ValueError:
            found = "its kernels" if name.encode() in kernels else "nobody"
            understood["unknown"].append([name, value, f"read by {found}"])
        os.environ.pop(name)
    understood["of NCCL"] = {n: v for n, v in sorted(given.items()) if n.startswith("NCCL")}
    print(json.dumps({"version": version("vllm"), "understood": understood}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
