"""The command line: the only place that prints and exits. Commands load when they are invoked."""

from simreduce.app.cli.main import main

__all__ = ["main"]
