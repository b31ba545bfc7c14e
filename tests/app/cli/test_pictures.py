"""`--svg` and `--png` of `topo show`, `topo rings` and `topo trees`."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("command", [["show"], ["rings"], ["trees"]])
def test_both_formats_at_once(simreduce, tmp_path, command):
    svg, png = tmp_path / "a.svg", tmp_path / "a.png"
    status, _, err = simreduce("topo", *command, "v100-mesh-4", "--svg", svg, "--png", png)

    assert (0, "") == (status, err)
    assert "{http://www.w3.org/2000/svg}svg" == ET.parse(svg).getroot().tag  # noqa: S314
    assert png.read_bytes().startswith(PNG)


def test_a_picture_comes_instead_of_the_matrix_which_is_large_for_a_thousand_hosts(
    simreduce, tmp_path
):
    """Routes between 4,096 devices would take minutes; the line about the file is all that is
    printed.
    """
    file = tmp_path / "a.svg"
    status, out, err = simreduce("topo", "show", "fat_tree:4096", "--svg", file)

    assert (0, "") == (status, err)
    assert f"{file}: " == out[: len(str(file)) + 2]
    assert 1 == out.count("\n")


def test_json_is_printed_beside_a_picture(simreduce, tmp_path):
    out = simreduce("topo", "show", "gh200", "--svg", tmp_path / "a.svg", "--json").out

    assert "topo show" == json.loads(out)["command"]
    assert (tmp_path / "a.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        (
            ["dgxv", "--svg", "/nope/x.svg"],
            ["no topology 'dgxv'", "/nope/x.svg: cannot be written: there is no such folder"],
        ),
        (["gh200", "--png", "/"], ["/: cannot be written: it is a folder"]),
        (["gh200", "--svg", ""], ["the name of the file to write is empty; - stands for stdout"]),
        (
            ["gh200", "--svg", "x.png"],
            ["--svg x.png: the name says that it is PNG; write --png x.png"],
        ),
        (
            ["gh200", "--png", "x.SVG"],
            ["--png x.SVG: the name says that it is SVG; write --svg x.SVG"],
        ),
        (["gh200", "--svg", "x", "--png", "x"], ["--svg x and --png x: one file cannot be both"]),
    ],
)
def test_every_fault_is_told_and_nothing_is_written(
    simreduce, tmp_path, monkeypatch, arguments, faults
):
    monkeypatch.chdir(tmp_path)
    status, out, err = simreduce("topo", "show", *arguments)

    assert (2, "") == (status, out)
    assert all(fault in err for fault in faults)
    assert len(faults) == err.count("\n")
    assert [] == list(Path(tmp_path).iterdir())


def test_png_without_its_renderer_is_refused_before_the_work(simreduce, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    status, out, err = simreduce("topo", "show", "dgxv", "--png", tmp_path / "a.png")

    assert (2, "") == (status, out)
    assert "no topology 'dgxv'" in err
    assert "a.png: PNG needs resvg: pip install 'simreduce[png]'; SVG needs nothing" in err
