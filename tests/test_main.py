"""`python -m simreduce` and the console script."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "simreduce.app.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from simreduce.__main__ import main
main()
"""


def test_ctrl_c_during_imports_is_silent():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )

    assert (130, "", "") == (done.returncode, done.stdout, done.stderr)
