#!/bin/sh
# vLLM's check of environment variables calls one unknown that its own kernels read and its own code
# sets.
#
# Seen with vLLM 0.33.0, CPython 3.11 (Linux, no GPU; PyTorch 2.13.0 in the place of the release that
# the wheel names). VLLM_CUSTOM_ALLREDUCE_ALGO chooses between the one-stage and two-stage all-reduce:
# the compiled library has its name, and `model_executor/determinism/batch_invariant.py` sets it to
# "1stage" where sums must not depend on the size of a batch. It is missing from
# `vllm.envs.environment_variables`, so vLLM warns "Unknown vLLM environment variable detected", as for
# a misspelt one, and does not start with `--fail-on-environ-validation`. Who takes the warning at its
# word deletes a setting that works.
#
# Output seen:
#   VLLM_CUSTOM_ALLREDUCE_ALGO: in the kernels, set by vLLM, check: Unknown vLLM environment variable detected: VLLM_CUSTOM_ALLREDUCE_ALGO
#   VLLM_ALLREDUCE_USE_SYMM_MEM: not in the kernels, set by vLLM, check: fine
#   VLLM_NO_SUCH_VARIABLE: not in the kernels, not set by vLLM, check: Unknown vLLM environment variable detected: VLLM_NO_SUCH_VARIABLE
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy packaging regex
# The library and its check alone; what it needs to serve models is left out.
"$folder/env/bin/pip" install --quiet --no-deps vllm==0.33.0
cd "$folder"
"$folder/env/bin/python" - 2> check.log <<'PYTHON' | tee seen.txt
import os
from importlib.util import find_spec
from pathlib import Path

for name in [name for name in os.environ if name.startswith("VLLM_")]:
    del os.environ[name]
from vllm.platforms.interface import Platform

[home] = map(Path, find_spec("vllm").submodule_search_locations)
kernels = b"".join(path.read_bytes() for path in home.glob("_C*.so"))
code = (home / "model_executor" / "determinism" / "batch_invariant.py").read_text("utf-8")
for name, value in (
    ("VLLM_CUSTOM_ALLREDUCE_ALGO", "1stage"),
    ("VLLM_ALLREDUCE_USE_SYMM_MEM", "1"),
    ("VLLM_NO_SUCH_VARIABLE", "1"),
):
    os.environ[name], check = value, "fine"
    try:
        Platform.validate_environ(hard_fail=True)
    except ValueError as error:
        check = str(error)
    del os.environ[name]
    read = "in the kernels" if name.encode() in kernels else "not in the kernels"
    sets = "set by vLLM" if f'os.environ["{name}"] = ' in code else "not set by vLLM"
    print(f"{name}: {read}, {sets}, check: {check}")
PYTHON
unknown="Unknown vLLM environment variable detected"
test "$(cat seen.txt)" = "\
VLLM_CUSTOM_ALLREDUCE_ALGO: in the kernels, set by vLLM, check: $unknown: VLLM_CUSTOM_ALLREDUCE_ALGO
VLLM_ALLREDUCE_USE_SYMM_MEM: not in the kernels, set by vLLM, check: fine
VLLM_NO_SUCH_VARIABLE: not in the kernels, not set by vLLM, check: $unknown: VLLM_NO_SUCH_VARIABLE"
