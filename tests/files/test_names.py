"""Names from outside: the rule, and every reader of hosts that holds it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable

import pytest

from simreduce.errors import InputError, TopologyError
from simreduce.files.formats import Name, is_name
from simreduce.topology.importers.hosts import read_hosts

RULE = "1 to 255 letters, digits or any of _ . : / -, the first no -"
BAD = {
    "a'b": '"a\'b"',
    'a"b': "'a\"b'",
    "a b": "'a b'",
    "$(true)": "'$(true)'",
    "a\nb": r"'a\nb'",
    "\x1b": r"'\x1b'",
    "a\0b": r"'a\x00b'",
    "-a": "'-a'",
    "a" * 256: f"'{'a' * 76}...",
    "h: {a: b}": "'h: {a: b}'",
}
"""Names that are refused, as messages quote them."""


def faults(text: str) -> list[str]:
    with pytest.raises(TopologyError) as error:
        read_hosts(text, "t")
    return list(error.value.problems)


def expected(places: Iterable[str], names: Iterable[str] = BAD) -> list[str]:
    named = zip(places, names, strict=True)
    return [f"t: {place}: {BAD[name]} is not a name ({RULE})" for place, name in named]


@pytest.mark.parametrize(
    "text", ["n0", "ip-10-0-0-1.ec2.internal", "a" * 255, "7", "/r1/n2:3", "_"]
)
def test_a_name_is_its_text(text: str) -> None:
    assert Name(text) == text
    assert type(pickle.loads(pickle.dumps(Name(text)))) is Name  # noqa: S301


@pytest.mark.parametrize("value", [*BAD, "", 3, None, "é", "n0\n"])
def test_there_is_no_other_name(value: object) -> None:
    assert not is_name(value)
    with pytest.raises(InputError, match="is not a name"):
        Name(value)


def test_instances_of_aws() -> None:
    rows = [{"InstanceId": name, "NetworkNodes": ["nn-1"]} for name in BAD]
    found = faults(json.dumps({"Instances": rows}))
    assert found == expected(f"Instances[{i}].InstanceId" for i in range(10))


def test_instances_of_google_cloud() -> None:
    where = {"physicalHostTopology": {"cluster": "c", "block": "b", "subblock": "s"}}
    found = faults(json.dumps([{"name": name, "resourceStatus": where} for name in BAD]))
    assert found == expected(f"[{i}].name" for i in range(10))


def test_nodes_of_slurm() -> None:
    """Its lines end names at blanks, and at line breaks."""
    names = [name for name in BAD if len(name.split()) == 1]
    found = faults("".join(f"SwitchName=s{i} Nodes={name}\n" for i, name in enumerate(names)))
    assert found == expected((f"line {i}" for i in range(1, 8)), names)


def test_adapters_of_infiniband() -> None:
    """A quote ends a description, and a line break its line."""
    names = [name for name in BAD if not {*name} & {'"', "\n"}]
    adapters = "".join(f'Ca 1 "H-{name}" # "{name} mlx5_0"\n[1](a) "S-1"[1]\n' for name in names)
    found = faults(f'Switch 36 "S-1" # "leaf"\n{adapters}')
    assert found == expected((f"line {2 * i}" for i in range(1, 9)), names)
