#!/bin/sh
# torchtitan says that it cannot import a model that it lists and has, where `triton` is missing.
#
# Seen with torchtitan 0.3.0, PyTorch 2.13.0, CPython 3.11 (Linux, no GPU). Every model imports
# kernels of an expert-parallel dispatcher, which import triton. torchtitan does not require triton,
# and PyTorch for CPUs does not bring it. `ConfigManager` catches the ImportError of each place where
# a model may be and tries the next, so `--module llama3` ends with a message about three packages
# and none about triton. The name of a package in full, `--module torchtitan.models.llama3`, gets no
# better one. With `pip install triton`, which needs no GPU, both are read.
#
# Output seen:
#   installed: torchtitan/models/llama3/config_registry.py
#   short name: Cannot import config_registry for module 'llama3' from torchtitan.models, torchtitan.experiments, or torchtitan.experiments.rl.examples
#   full name names triton: False
#   cause: No module named 'triton'
#   with triton: tensor_parallel_degree 4
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 torchtitan==0.3.0 2> "$folder/log.txt"
"$folder/env/bin/pip" uninstall --quiet --yes triton 2> "$folder/log.txt"
cd "$folder"
cat > ask.py <<'PYTHON'
import sys
from importlib import import_module
from pathlib import Path

import torchtitan
from torchtitan.config import ConfigManager


def ask(module):
    return ConfigManager().parse_args(
        ["--module", module, "--config", "llama3_debugmodel", "--parallelism.tensor_parallel_degree", "4"]
    )


if sys.argv[1] == "without":
    own = Path(torchtitan.__file__).parent
    file = own / "models" / "llama3" / "config_registry.py"
    print("installed:", file.relative_to(own.parent) if file.exists() else None)
    try:
        ask("llama3")
    except ImportError as error:
        print("short name:", error)
    try:
        ask("torchtitan.models.llama3")
    except ImportError as error:
        print("full name names triton:", "triton" in str(error))
    try:
        import_module("torchtitan.models.llama3.config_registry")
    except ImportError as error:
        print("cause:", error)
else:
    degree = ask("llama3").parallelism.tensor_parallel_degree
    print("with triton: tensor_parallel_degree", degree)
PYTHON
"$folder/env/bin/python" -W ignore ask.py without 2> log.txt | tee seen.txt
"$folder/env/bin/pip" install --quiet triton==3.9.0 2> log.txt
"$folder/env/bin/python" -W ignore ask.py with 2> log.txt | tee -a seen.txt
cat > expected.txt <<'TEXT'
installed: torchtitan/models/llama3/config_registry.py
short name: Cannot import config_registry for module 'llama3' from torchtitan.models, torchtitan.experiments, or torchtitan.experiments.rl.examples
full name names triton: False
cause: No module named 'triton'
with triton: tensor_parallel_degree 4
TEXT
cmp expected.txt seen.txt
