"""Where the data that travels with the package lies: machines and scenarios."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal

from simreduce.errors import InternalError


def data_dir(kind: Literal["topologies", "scenarios"]) -> Path:
    """The folder of shipped TOML files of one kind.

    A wheel carries it as `simreduce/_data/KIND`; a source tree or an editable install has it beside
    the package.
    """
    package = Path(str(files("simreduce")))
    for folder in (package / "_data" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise InternalError(f"the installation of simreduce lacks its {kind}; reinstall it")
