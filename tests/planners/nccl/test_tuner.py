"""A tuner's file: what the example plugin's code made NCCL's library run, and what we say of it.

The plugin of NVIDIA/nccl, plugins/tuner/example (2026-06-11), was loaded by the libraries 2.28.9
and 2.30.7 on fake machines on 2026-11-30, with the rules of `tuner.csv`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from simreduce_validate.nccl_library.answers import read_answers

from simreduce.planners.nccl import Settings, choose
from simreduce.planners.nccl.constants import load_tuner
from simreduce.topology import load_topology

ANSWERS = Path(__file__).parent / "answers" / "tuner"


@pytest.mark.parametrize("version", ["2.28.9", "2.30.7"])
@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-h100x2"])
def test_rules_are_obeyed_as_the_plugin_obeys_them(machine, version):
    """Call by call: algorithm, protocol, channels and threads."""
    [answer] = [a for a in read_answers(ANSWERS / f"{version}.jsonl") if a.machine == machine]
    release = tuple(map(int, version.split(".")))[:2]
    settings = Settings(version=release, tuner=load_tuner(str(ANSWERS / "tuner.csv")))
    found = load_topology(machine)

    said = {
        (call.collective, call.nbytes): (
            call.algorithm, call.protocol, call.blocks, call.threads
        ) for call in answer.calls
    }  # fmt: skip
    ours = {key: choose(found, *key, settings) for key in said}
    assert said == {
        key: (each.algorithm, each.protocol, each.channels, each.threads)
        for key, each in ours.items()
    }
    assert {each.channels for each in ours.values()} > {1, 7, 24} & {c[2] for c in said.values()}
