"""constraints.txt pins what the environments of the tests install; `make lock` writes it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WANTED = [
    requirement
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for requirement in map(Requirement, lines)
    if requirement.name != PROJECT["name"]
]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_every_requirement_has_one_pin_that_meets_it(python):
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    pins = {
        pin.name: [each.version for each in pin.specifier]
        for pin in PINS
        if not pin.marker or pin.marker.evaluate(environment)
    }
    for each in WANTED:
        [version] = pins[canonicalize_name(each.name)]

        assert each.specifier.contains(version), f"{each} on Python {python}: pinned to {version}"


def test_pins_name_releases_and_no_places():
    assert {"=="} == {each.operator for pin in PINS for each in pin.specifier}
    assert {None} == {pin.url for pin in PINS}
