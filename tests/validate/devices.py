"""Devices as the options of a command ask for them; none is started."""

from __future__ import annotations

from simreduce_validate.devices import read_devices

_UNLESS_STATED = {
    "backend": "inproc", "route": "session", "hosts": None, "launch": "", "rate": None,
    "delay": None, "slow_port": (), "split": 1,
    "pretend": False, "timeout": 100.0,
}  # fmt: skip


def devices(topology, ngpus=None, **options):
    return read_devices(topology, ngpus, None, **{**_UNLESS_STATED, **options})
