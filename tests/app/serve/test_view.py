"""The state of the page: from the query of a URL to a scenario, and back."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.app.serve.view import View, read_view
from simreduce.errors import InputError
from simreduce.study.scenario_files import load_meshes, load_scenario, read_scenario_file
from tests.thorough import examples

SIZES = st.sampled_from(["1KiB", "64MiB", "1GB"])
VIEWS = st.builds(
    View,
    machine=st.sampled_from(["dgx1v", "dgx-a100x4", "switch:8", "dgx1vx4,fabric=fat_tree"]),
    size=SIZES,
    model=st.sampled_from(["", "resnet50"]),
    algo=st.sampled_from(["usual", "all", "nccl", "nccl,ring+packs=8"]),
    packing=st.sampled_from(["", "packs=8", "small=4096,10", "repack=8,fp16"]),
    look=st.sampled_from(["", "nccl+ddp"]),
    recompute=st.sampled_from(["", "full"]),
    runtime=st.sampled_from(["", "ideal"]),
    calibration=st.sampled_from(["", "nccl-volta"]),
    nccl=st.fixed_dictionaries({}, optional={"NCCL_ALGO": st.just("Ring;allreduce:Tree")}),
    links=st.fixed_dictionaries({}, optional={"gpu0<>gpu3": st.just("0.5"), "qpi": st.just("0")}),
)


@given(VIEWS)
def test_a_view_comes_back_from_its_query(view):
    """So it can be sent on, by itself or as the address of the page."""
    assert read_view(view.query, {}) == view
    assert read_view(f"http://127.0.0.1:1/token/?{view.query}", {}) == view


def test_a_view_is_the_scenario_that_a_file_says(tmp_path):
    """The page asks nothing that a file could not ask."""
    text = "machine=dgx1v&size=1MiB&algo=nccl,ring&packing=packs=2&NCCL_ALGO=Ring&link=gpu0<>gpu3=0"
    file = tmp_path / "view.toml"
    file.write_text(
        'topology = "dgx1v"\nworkload = "bytes:1MiB"\n'
        'strategies = ["nccl+packs=2", "ring+packs=2"]\n'
        '[nccl]\nNCCL_ALGO = "Ring"\n[link_factors]\n"gpu0<>gpu3" = 0\n'
    )

    mine, theirs = read_view(text, {}).ask({}), load_scenario(str(file))

    assert (mine.strategies, mine.workload) == (theirs.strategies, theirs.workload)
    assert mine.setup == theirs.setup


def test_usual_algorithms_are_those_of_the_machine():
    """And they carry the packing."""
    one = read_view("machine=dgx1v&packing=packs=4", {}).ask({})
    several = read_view("machine=dgx1vx2", {}).ask({})

    assert one.strategies is not None
    assert several.strategies is not None
    assert {s.packing for s in one.strategies} == {"packs=4"}
    assert "ring/ring" in {s.text for s in several.strategies}
    assert "ring/ring" not in {s.spec for s in one.strategies}
    assert read_view("machine=dgx1v&algo=all", {}).ask({}).strategies is None


def test_a_file_of_the_command_line_stands_under_its_name(tmp_path):
    """And no other file does."""
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "dgx1v"\n')
    files = {"mine": str(mine)}

    assert read_view("machine=mine", files).ask(files).setup.topology.devices[0] == "gpu0"
    with pytest.raises(InputError, match="no machine 'mine'"):
        read_view("machine=mine", {})
    with pytest.raises(InputError, match="no machine"):
        read_view(f"machine={mine}", files)


def test_every_fault_is_said_at_once_with_its_key():
    """Those that need the machine come behind those that do not."""
    with pytest.raises(InputError) as caught:
        read_view("machine=../x&sizee=3&model=resnet5&calibration=/etc/passwd&link=ab&size=1;2", {})
    assert [text.partition(":")[0] for text in caught.value.problems] == [
        "sizee", "link", "machine", "model", "calibration", "size",
    ]  # fmt: skip
    assert "(did you mean 'size'?)" in caught.value.problems[0]
    assert "(did you mean 'resnet50'?)" in caught.value.problems[3]

    bad = "machine=dgx1v&NCCL_ALGO=Rong&link=gpu0<>gpu9=0.5&algo=rong,nccl"
    with pytest.raises(InputError) as caught:
        read_view(bad, {}).ask({})
    assert {text.partition(":")[0] for text in caught.value.problems} == {
        "NCCL_ALGO", "link", "algo",
    }  # fmt: skip


FILES = ["/etc/passwd", "../../etc/passwd", "mine.toml", "./dgx1v", "file:///x", "~/.ssh/id", "\0"]


@pytest.mark.parametrize("key", ["machine", "model", "calibration", "algo", "packing", "size"])
@pytest.mark.parametrize("path", FILES)
def test_no_key_takes_a_path(key, path, monkeypatch, tmp_path):
    """Not even one that is there: nothing of a URL is opened."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('extends = "dgx1v"\n')
    with pytest.raises(InputError):
        read_view(
            f"machine=dgx1v&{key}={path}".replace("machine=dgx1v&machine", "machine"), {}
        ).ask({})


@given(st.text(max_size=300))
@settings(max_examples=examples(300))
def test_any_text_is_a_view_or_an_input_error(text):
    """Nothing else comes out."""
    with suppress(InputError):
        assert isinstance(read_view(text, {}), View)


@pytest.mark.parametrize("machine", ["dgx1v", "dgx-h100x8,fabric=rail_optimised", "torus:4x4"])
def test_the_name_of_a_machine_is_a_view(machine):
    """Also one whose settings look like a query."""
    assert read_view(machine, {}) == View(machine)
    assert read_view(machine, {}).query == f"machine={machine}"
    with pytest.raises(InputError, match="machin: unknown key "):
        read_view("machin=dgx1v", {})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dgx1w", "dgx1v"),
        ("p4d.24xlarge", "p4d"),
        ("p5.48xlargex4", "p5"),
        ("dgx-h10x8,fabric=rail_optimised", "dgx-h100"),
    ],
)
def test_an_unknown_machine_gets_a_suggestion(typed, meant):
    """As commands give it, for the names of clouds too."""
    with pytest.raises(InputError, match=rf"no machine .* \(did you mean '{meant}'\?\)"):
        read_view(typed, {})


MESHED = "machine=dgx-a100&model=llama-3-8b&mesh=tp=4,pp=2&global_batch=16&schedule=gpipe"


def test_a_view_of_a_mesh_is_the_scenario_that_a_file_says(tmp_path):
    """And comes back from its query."""
    file = tmp_path / "view.toml"
    file.write_text(
        'topology = "dgx-a100"\nworkload = "llama-3-8b"\n[step]\nmesh = "tp=4,pp=2"\n'
        'global_batch = 16\n[step.pipeline]\nschedule = "gpipe"\n'
    )
    view = read_view(MESHED, {})

    assert view.ask({}).question == load_meshes(str(file)).question
    assert view == read_view(view.query, {})


def test_every_fault_of_a_mesh_is_said():
    """A schedule of a URL is no path."""
    with pytest.raises(InputError) as seen:
        read_view("machine=dgx-a100&mesh=auto&schedule=1f1bb&algo=ring&packing=packs=2", {})
    with pytest.raises(InputError) as built:
        read_view(MESHED.replace("tp=4", "tpp=4"), {}).ask({})
    text = "\n".join(seen.value.problems)

    assert "model: missing; a mesh trains one, such as " in text
    assert "global_batch: missing" in text
    assert "schedule: no schedule '1f1bb' (did you mean '1f1b'?)" in text
    assert "algo: NCCL chooses how the collectives of a mesh run" in text
    assert "packing: NCCL chooses" in text
    assert "unknown axis 'tpp' (did you mean 'tp'?)" in "\n".join(built.value.problems)


JOBS = """
topology = "dgx1vx4,fabric=fat_tree,radix=2,nics=1"
topology_overrides = {"links.nvlink2.bandwidth" = "20 GB/s"}
nccl = {NCCL_ALGO = "Ring", version = "2.18"}
[[job]]
name = "a"
nodes = [0, 2]
workload = "mine.csv"
count = 1
[[job]]
name = "b"
nodes = [3, 1]
workload = "bytes:1M"
count = 1
"""


@pytest.fixture
def jobs(tmp_path):
    """The files of a command line, one of them with jobs that name a file beside it."""
    (tmp_path / "mine.csv").write_text("name,elements\na,65536\n")
    (tmp_path / "two.toml").write_text(JOBS)
    (tmp_path / "box.toml").write_text('extends = "dgx1v"\n')
    return {name: str(tmp_path / f"{name}.toml") for name in ("two", "box")}


def test_jobs_of_the_command_line_have_the_settings_of_the_view(jobs):
    """Another machine has nothing of what the file says of its own."""
    plain = read_view("jobs=two", jobs)
    moved = read_view("jobs=two&machine=dgx1vx4&NCCL_ALGO=Tree&link=ib_edr=0.5", jobs)
    asked = moved.ask(jobs)

    for view in (plain, moved):
        assert read_view(view.query, jobs) == view
    assert plain.jobs_table(jobs)[1] == read_scenario_file(jobs["two"])[1]
    assert (asked.setup.topology.name, asked.setup.nccl.text) == (
        "dgx1vx4", "version=2.18 NCCL_ALGO=tree",
    )  # fmt: skip
    assert "topology_overrides" not in moved.jobs_table(jobs)[1]
    assert moved.jobs_table(jobs)[1]["link_factors"] == {"ib_edr": 0.5}


def test_every_fault_of_jobs_is_said(jobs, tmp_path):
    """Only a file of jobs that the command line named is one."""
    for name in (str(tmp_path / "two.toml"), "box", "../two"):
        with pytest.raises(InputError, match="jobs: no file of jobs"):
            read_view(f"jobs={name}", jobs)
    with pytest.raises(InputError) as seen:
        read_view("jobs=tow&size=1MiB&algo=ring&mesh=auto", jobs)
    with pytest.raises(InputError) as built:
        read_view("jobs=two&machine=dgx1vx2&NCCL_ALGO=Rong&link=x=0.5", jobs).ask(jobs)
    text = "\n".join(seen.value.problems)

    assert "jobs: no file of jobs 'tow' (did you mean 'two'?)" in text
    assert all(f"{key}: the file of the jobs says" in text for key in ("size", "algo", "mesh"))
    assert {"NCCL_ALGO", "link"} <= {each.partition(":")[0] for each in built.value.problems}
