"""Plans on real devices: emitted as TensorFlow ops, run, checked and timed.

`open_backend` is the way in; what it yields takes plans and gives times. Modules that import
TensorFlow (`emitter`, `session`, `function`, `builders`, `driver`, `server`, `member`) are loaded
in child processes only.
"""

from simreduce_validate.running.backend import (
    BACKENDS,
    Backend,
    Executable,
    Measurement,
    open_backend,
)
from simreduce_validate.running.builtin import BUILTINS, Builtin
from simreduce_validate.running.links import Links
from simreduce_validate.running.protocol import ROUTES
from simreduce_validate.running.workers import Worker

__all__ = [
    "BACKENDS",
    "BUILTINS",
    "ROUTES",
    "Backend",
    "Builtin",
    "Executable",
    "Links",
    "Measurement",
    "Worker",
    "open_backend",
]
