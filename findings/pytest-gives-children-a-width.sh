#!/bin/sh
# What a command prints in a test may be wrapped at 80 columns, though nobody set COLUMNS.
#
# Seen with pytest 9.2.0, pytest-xdist 3.8.0, CPython 3.11 with GNU readline 8 (Linux, no terminal).
# pytest imports `readline` before it loads any conftest.py. GNU readline then writes COLUMNS=80 and
# LINES=24 into the environment of the process by C's setenv. Python has copied the environment by
# then, so `os.environ` has no COLUMNS; but `subprocess` without `env=` starts children with the
# process's own environment, and they see it. Workers of pytest-xdist are such children: there
# `os.environ` has COLUMNS, so `env=dict(os.environ)` hands it on too, and a test that passes alone
# fails with `-n 1`. Who wants none takes `os.environ.pop("COLUMNS", None)` and, for what Python does
# not see, `os.unsetenv("COLUMNS")`.
#
# Output seen:
#   alone: os.environ None, child 80
#   xdist: os.environ 80, child 80
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset COLUMNS LINES
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet pytest==9.2.0 pytest-xdist==3.8.0
cd "$folder"
cat > test_width.py <<'PYTHON'
import os
import subprocess
import sys
from pathlib import Path

SHOW = "import os; print(os.environ.get('COLUMNS'))"


def test_width():
    child = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True)
    Path("seen.txt").write_text(f"os.environ {os.environ.get('COLUMNS')}, child {child.stdout}")
PYTHON
"$folder/env/bin/python" - <<'PYTHON'
import readline
import sys

if "libedit" in (readline.__doc__ or ""):
    sys.exit("this Python has libedit, which sets nothing: use one with GNU readline")
PYTHON
"$folder/env/bin/python" -m pytest -q test_width.py < /dev/null > alone.txt 2>&1
alone=$(cat seen.txt)
"$folder/env/bin/python" -m pytest -q -n 1 test_width.py < /dev/null > xdist.txt 2>&1
xdist=$(cat seen.txt)
echo "alone: $alone"
echo "xdist: $xdist"
test "$alone" = "os.environ None, child 80"
test "$xdist" = "os.environ 80, child 80"
