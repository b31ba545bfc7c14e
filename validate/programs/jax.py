"""JAX: the flags of `xla.env` as XLA has them when it compiles, and whether it refuses others."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

COMPILE = "import jax; jax.jit(lambda x: x + 1)(1.0); print(jax.__version__)"
FLAG = re.compile(r"--(\w+)=")


def _compile(flags: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, "-c", COMPILE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def main(folder: str) -> None:
    """Print what XLA understood of the files of a folder."""
    shell = f'set -a; . {shlex.quote(str(Path(folder, "xla.env")))}; printf %s "$XLA_FLAGS"'
    flags = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as dumped:
        done = _compile(f"{flags} --xla_dump_to={dumped}")
        if done.returncode:
            sys.exit(done.stderr)
        options = next(Path(dumped).glob("*.debug_options")).read_text("utf-8")
    found = dict(re.findall(r"^(\w+): (\S+)$", options, re.MULTILINE))
    understood = {name: json.loads(found[name]) for name in FLAG.findall(flags)}
    other = _compile(f"{flags} --xla_gpu_no_such_flag=1")
    understood["an unknown flag"] = "aborts" if other.returncode else "taken"
    print(json.dumps({"version": done.stdout.strip(), "understood": understood}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
