"""Bad input ends with status 2 and one readable message for each fault, never with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from simreduce.app.cli import cli

EXAMPLES = "'25 GB/s' or '200 Gbit/s'"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """A folder of one's own, with files that are wrong in their own ways."""
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "link.toml": b'extends = "dgx1v"\n[links.nvlink2]\npairs = [["gpu0", "gpu9"]]\n',
        "rate.toml": b'extends = "dgx1v"\n[links.qpi]\nbandwidth = 25\n',
        "binary.toml": b"\xff\x00\x80",
        "nul.toml": b"\x00",
        "replicas.toml": b'[replicas]\nworkers = 2\ncompute = "1 s"\n',
        "good.toml": b'topology = "full:2"\nworkload = "bytes:64K"\nstrategies = ["ring"]\n',
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.toml").mkdir()


BAD = {
    # machines
    "an unknown GPU in a link": (
        ["bench", "link.toml"],
        "link.toml: links.nvlink2.pairs[0]: no node named 'gpu9' (did you mean 'gpu7'?)",
    ),
    "a bandwidth that is a number": (
        ["bench", "rate.toml"],
        (
            f"rate.toml: links.qpi.bandwidth: 25 has no unit; write a bandwidth as text, for "
            f"example {EXAMPLES}"
        ),
    ),
    "a bandwidth without a unit": (
        ["bench", "switch:8,bandwidth=25"],
        f"switch:8,bandwidth=25: bandwidth: '25' has no unit; write for example {EXAMPLES}",
    ),
    "no devices": (["bench", "switch:0"], "switch:0: 0 devices; at least 1 is needed"),
    "a machine that is not there": (
        ["topo", "show", "dgxv"],
        (
            "no topology 'dgxv' (did you mean 'dgx1v'?); `simreduce topo list` names what "
            "is shipped; "
            "inline are dragonfly:N, dragonfly_plus:N, fat_tree:N, full:N, ring:N, "
            "switch:N, torus:AxB and "
            "MACHINExN; or give the path of a file"
        ),
    ),
    "a machine file that is not there": (
        ["bench", "missing.toml"],
        "missing.toml: there is no such file",
    ),
    "a machine file that is a folder": (
        ["bench", "folder.toml"],
        "folder.toml: is a directory, not a file",
    ),
    "a machine file that is no text": (
        ["bench", "binary.toml"],
        "binary.toml: line 1 is not UTF-8 text",
    ),
    "a machine file that is no TOML": (
        ["topo", "show", "nul.toml"],
        "nul.toml: not valid TOML: Invalid statement (at line 1, column 1)",
    ),
    "a machine that is a scenario": (
        ["bench", "good.toml"],
        "good.toml: is a scenario, not a machine file; try `simreduce run good.toml`",
    ),
    "a machine that is a scenario of replicas": (
        ["topo", "show", "replicas.toml"],
        "replicas.toml: is a scenario, not a machine file; try `simreduce step replicas.toml`",
    ),
    # strategies
    "more sub-chunks than GPUs": (
        ["bench", "full:8", "--algo", "xring#9"],
        "xring#9: the number of sub-chunks must be from 1 to the GPUs per task, 8 here",
    ),
    "an even number of fields": (
        ["bench", "full:8", "--algo", "xring:4k"],
        (
            "strategy not well formed: xring:4k: after a ':' come a limit, another "
            "':' and an algorithm, "
            "as in 'pscpu:32k:xring'"
        ),
    ),
    "a misspelt algorithm of NCCL, and its option": (
        ["bench", "full:2", "--algo", "nccl:rng+chanels=4"],
        (
            "strategy not well formed: nccl:rng (did you mean 'nccl:ring'?): after a ':' come a "
            "limit, another ':' and an algorithm, as in 'pscpu:32k:xring'\n"
            "simreduce: nccl:rng+chanels=4: unknown option +chanels=4 (did you mean 'channels=N'?)"
        ),
    ),
    "a link to a GPU that is not there": (
        ["bench", "dgx-h100", "--fault", "gpu0<>gpu77@0=0"],
        (
            "dgx-h100: no link, node or link class 'gpu0<>gpu77': no node 'gpu77' (did you mean "
            "'gpu7'?)"
        ),
    ),
    "a link from a GPU that is not there": (
        ["bench", "dgx-h100", "--fault", "gpu77>nvswitch0@0=0"],
        (
            "dgx-h100: no link, node or link class 'gpu77>nvswitch0' (did you mean "
            "'gpu7>nvswitch0'?)"
        ),
    ),
    "a link that is not there": (
        ["bench", "dgx-h100", "--fault", "gpu0>gpu7@0=0"],
        (
            "dgx-h100: no link, node or link class 'gpu0>gpu7': links of gpu0 lead to nvswitch0, "
            "pex0"
        ),
    ),
    "a misspelt algorithm": (
        ["verify", "--algo", "rng"],
        "strategy (rng) contains invalid alg rng (did you mean 'ring'?)",
    ),
    "a GPU too many for its links": (
        ["bench", "ring:4", "--algo", "copy_to_gpus"],
        (
            "copy_to_gpus: no route from 'gpu0' to 'gpu2': no switch or host joins them, "
            "and GPUs do not forward traffic for others"
        ),
    ),
    # scenarios
    "a scenario that is not there": (
        ["run", "dgx1v-resnet"],
        "no scenario 'dgx1v-resnet' (did you mean 'dgx1v-resnet50'?); a file ends in .toml",
    ),
    "a scenario file that is not there": (
        ["run", "missing.toml"],
        "missing.toml: there is no such file",
    ),
    "a scenario that is a folder": (["run", "folder"], "folder: is a directory, not a file"),
    "a scenario that is no text": (["run", "binary.toml"], "binary.toml: line 1 is not UTF-8 text"),
    "a scenario that is no TOML": (
        ["run", "nul.toml"],
        "nul.toml: not valid TOML: Invalid statement (at line 1, column 1)",
    ),
    "a scenario that is a machine": (
        ["run", "rate.toml"],
        (
            "rate.toml: is a machine file, not a scenario; try `simreduce bench "
            "rate.toml`, or write a scenario with "
            "topology = 'rate.toml'"
        ),
    ),
    "a scenario that is a shipped machine": (
        ["run", "gh200"],
        (
            "gh200 is a machine, not a scenario; try `simreduce bench gh200`, or write a "
            "scenario with topology = 'gh200'"
        ),
    ),
    "an import that is not there": (
        ["topo", "import", "nothere"],
        "nothere: there is no such file",
    ),
    "an import that is a folder": (
        ["topo", "import", "folder"],
        "folder: is a directory, not a file",
    ),
    "machines that only bench can hold": (
        ["topo", "show", "dgx1vx16384"],
        (
            "dgx1vx16384: 131072 devices are more than can be simulated: at most 16384 "
            "devices one by one, or 1048576 equal "
            "machines on one switch with `bench`"
        ),
    ),
    # options
    "an unknown runtime": (
        ["bench", "full:2", "--runtime", "tensorflw"],
        (
            "--runtime: unknown runtime 'tensorflw' (did you mean 'tensorflow'?); one of "
            "tensorflow, nccl, ideal"
        ),
    ),
    "an unknown runtime of a scenario": (
        ["run", "good.toml", "--runtime", "idal"],
        "--runtime: unknown runtime 'idal' (did you mean 'ideal'?); one of tensorflow, nccl, ideal",
    ),
    "an unknown calibration": (
        ["bench", "full:2", "--calibration", "nomnal"],
        "--calibration: no calibration 'nomnal' (did you mean 'nominal'?); a file ends in .toml",
    ),
    "a calibration that is no text": (
        ["run", "good.toml", "--calibration", "binary.toml"],
        "--calibration: binary.toml: line 1 is not UTF-8 text",
    ),
    "an unknown dtype": (
        ["bench", "full:2", "-d", "flaot32"],
        (
            "--datatype: unknown dtype 'flaot32' (did you mean 'float32'?); "
            "one of float32, float16, float64, bfloat16, int32, int64, float, half, double"
        ),
    ),
    "a size that is none": (
        ["bench", "full:2", "-b", "64X"],
        "-b: '64X' is not a size; write for example '64M', '512K', '64MiB' or '1048576'",
    ),
    "sizes the wrong way round": (
        ["bench", "full:2", "-b", "2M", "-e", "1M"],
        "the sizes go from -b 2097152 to -e 1048576: needs 1 <= minbytes <= maxbytes",
    ),
    "less than an element": (
        ["bench", "full:2", "-b", "3"],
        "-b 3: less than one element of float32",
    ),
    "less than a wide element": (
        ["bench", "full:2", "-b", "7", "-e", "8", "-d", "double"],
        "-b 7: less than one element of float64",
    ),
    "no bytes": (
        ["bench", "full:2", "-b", "0"],
        ("the sizes go from -b 0 to -e 0: needs 1 <= minbytes <= maxbytes"),
    ),
    "a factor that is no number": (
        ["bench", "full:2", "-f", "nan"],
        "-f: must be a finite number, got nan",
    ),
    "more GPUs than there are": (
        ["bench", "full:2", "-g", "3"],
        "-g 3: cannot take 3 of 2 devices; choose from 1 to 2",
    ),
    "no GPUs": (
        ["bench", "full:2", "-g", "0"],
        "-g 0: cannot take 0 of 2 devices; choose from 1 to 2",
    ),
    "an order that is no list of numbers": (
        ["bench", "full:2", "--gpu-indices", "0,-1"],
        "--gpu-indices 0,-1: whole numbers with commas between, such as 0,1,2,3",
    ),
    "an order that names a GPU twice": (
        ["bench", "full:2", "--gpu-indices", "0,0"],
        (
            "--gpu-indices 0,0: must hold each of 0 to n-1 once, where n is the number of GPUs "
            "of a task, 2 here"
        ),
    ),
    "no calls to warm up": (
        ["bench", "full:2", "-w", "0"],
        (
            "-w 0: a first call also connects and loads kernels, and how long that takes is not "
            "known; give 1 or more"
        ),
    ),
    "a factor of 0": (
        ["bench", "full:2", "-f", "0"],
        "-f 0: the factor must be above 1 (or give -i, a step)",
    ),
    "a seed that nothing draws from": (
        ["bench", "full:2", "--seed", "3"],
        "--seed 3: only --jitter draws from it; give --jitter PART too",
    ),
    "a tolerance that is most of the work": (
        ["bench", "full:2", "--tolerance", "50%"],
        "--tolerance 50%: needs a part between 0 and 10%, as 0.1%",
    ),
    "a root that an all-reduce does not have": (
        ["bench", "full:2", "-r", "0"],
        "-r 0: all_reduce has no root; reduce and broadcast have",
    ),
    "a root that an all-gather does not have": (
        ["explain", "full:2", "--collective", "all_gather", "--root", "1"],
        "-r 1: all_gather has no root; reduce and broadcast have",
    ),
    "a root that nothing proved has": (
        ["verify", "--algo", "ring", "-r", "1"],
        "-r 1: all_reduce has no root; reduce and broadcast have",
    ),
    "a device that is slowed down twice": (
        ["bench", "full:2", "--slow", "gpu1=2", "--slow", "gpu1=3"],
        "--slow gpu1=3: another --slow slows gpu1 down; give one factor",
    ),
    "a bandwidth that takes 300 digits of time": (
        ["bench", "full:2", "--fault", "gpu1@0=1e-300GB/s"],
        "--fault gpu1@0=1e-300GB/s: '1e-300GB/s' is no rate of a link: 0, or 1 B/s to 1e9 GB/s",
    ),
    "a share above the whole": (
        ["bench", "full:2", "--fault", "gpu1@0=500%"],
        (
            "--fault gpu1@0=500%: '500%' is not a share of a bandwidth, 0% or 0.0001% to 100%; "
            "write for example 50%"
        ),
    ),
    "a calibration without content": (
        ["bench", "full:2", "--calibration", "/dev/null"],
        (
            "--calibration: /dev/null: is empty; give any of title, step, provenance, "
            "dispatch, issue, links, "
            "cpu, nccl, errors, controls"
        ),
    ),
    "less than an element for each rank of bench": (
        ["bench", "switch:8", "--collective", "all_gather", "-b", "4"],
        "-b 4: less than one element of float32 for each of 8 ranks",
    ),
    "less than an element for each rank of explain": (
        ["explain", "switch:8", "--collective", "all_gather", "-b", "4"],
        "-b 4: less than one element of float32 for each of 8 ranks",
    ),
    "machines that cannot share the GPUs": (
        ["verify", "--algo", "ring", "-g", "8", "--tasks", "3"],
        "--tasks 3: 8 GPUs cannot be shared evenly by 3 machines",
    ),
    "too many GPUs to prove, and machines that cannot share them": (
        ["verify", "--algo", "ring", "-g", "513", "--tasks", "2"],
        (
            "-g 513: 513 GPUs are more than the 512 that can be proven\n"
            "simreduce: --tasks 2: 513 GPUs cannot be shared evenly by 2 machines"
        ),
    ),
    "a missing folder for -J": (
        ["bench", "full:2", "-J", "missing/x.json"],
        "missing/x.json: cannot be written: there is no such folder",
    ),
    "a folder for -J": (
        ["bench", "full:2", "-J", "folder"],
        "folder: cannot be written: it is a folder",
    ),
    "nothing for -J": (
        ["bench", "full:2", "-J", ""],
        "the name of the file to write is empty; - stands for stdout",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_told_in_one_message(simreduce, arguments, message):
    """On stderr, with the program's name; nothing is printed that could be taken for a result."""
    assert (2, "", f"simreduce: {message}\n") == simreduce(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command 'nope'."),
        (["topo", "nope"], "No such command 'nope'."),
        (["vaildate", "switch:2"], "Error: No such command 'vaildate' (did you mean 'validate'?)"),
        (["topo", "lst"], "Error: No such command 'lst' (did you mean 'list'?)"),
        (
            ["bench", "full:2", "--colective", "reduce"],
            "No such option '--colective'. (Did you mean one of: '--collective', '--tolerance'?)",
        ),
        (["bench", "full:2", "--nope"], "No such option '--nope'"),
        (["bench"], "Missing argument 'TOPOLOGY'."),
        (["run"], "Missing argument 'SCENARIO'."),
        (["run", "good.toml", "more"], "Got unexpected extra argument (more)"),
    ],
)
def test_a_command_that_is_spelt_wrong_is_told_with_its_usage(simreduce, arguments, message):
    """As command lines do."""
    status, out, err = simreduce(*arguments)

    assert (2, "") == (status, out)
    assert err.startswith("Usage: ")
    assert message in err


def test_every_option_of_a_wrong_type_is_named_at_once(simreduce):
    """In our words, by the spelling that was typed."""
    typed = ("bench", "full:2", "-f", "x", "--root", "y", "--seed", "z", "-g", "1.5")
    below = ("verify", "--count", "3", "--count", "-1", "-g", "0")

    assert simreduce(*typed) == (
        2,
        "",
        (
            "simreduce: -f: must be a number, got x\n"
            "simreduce: --root: must be a whole number, got y\n"
            "simreduce: --seed: must be a whole number, got z\n"
            "simreduce: -g: must be a whole number, got 1.5\n"
        ),
    )
    assert simreduce(*below).err == (
        "simreduce: --count: must be a whole number of at least 0, got -1\n"
        "simreduce: -g: must be a whole number of at least 1, got 0\n"
        "simreduce: say what to prove: --algo STRATEGY, --all, or a file of MSCCL\n"
    )
    assert simreduce("run", "--workers", "x").err.splitlines() == [
        "simreduce: --workers: must be a whole number from 1 to 4096, got x",
        "simreduce: SCENARIO: is missing",
    ]


def test_every_fault_of_a_scenario_and_of_options_is_told_at_once(simreduce):
    """Each by the file and its key, or by the option that stands in the key's place; what depends
    on the machine too.
    """
    path = "faults.toml"
    Path(path).write_text(
        'topology = "full:4"\nworkload = "resnt50"\nstrategies = ["rng", 4]\n'
        '[step]\nbatch = 4\nprofile = "missing.csv"\ntime = "3 mss"\n',
    )
    faults = (
        "--runtime: unknown runtime 'idl' (did you mean 'ideal'?)",
        "--calibration: no calibration 'x'",
        f"{path}: workload: no workload 'resnt50' (did you mean 'resnet50'?)",
        (f"{path}: strategies[0]: strategy (rng) contains invalid alg rng (did you mean 'ring'?)"),
        f"{path}: strategies[1]: must be text, got 4",
        "--gpu-indices: 3,3: must hold each of 0 to n-1 once",
        "--batch: must be a whole number from 1 to 1000000000, got 0",
        f"{path}: step.time: '3 mss': unknown unit 'mss' for a time",
        f"{path}: step: give at most one of time, rate, profile, gpu; it has time and profile",
        f"{path}: step.profile: missing.csv: there is no such file",
        "-g 9: cannot take 9 of 4 devices; choose from 1 to 4",
        "--jitter x: needs a part between 0 and 1",
        "full:4: no device 'gpu9' (did you mean 'gpu3'?)",
    )
    status, out, err = simreduce(
        "step",
        path,
        "--runtime",
        "idl",
        "--calibration",
        "x",
        "--gpu-indices",
        "3,3",
        "--batch",
        "0",
        "-g",
        "9",
        "--jitter",
        "x",
        "--slow",
        "gpu9=2",
    )

    assert (2, "") == (status, out)
    lines = zip(faults, err.splitlines(), strict=True)
    assert [] == [
        (fault, line) for fault, line in lines if not line.startswith(f"simreduce: {fault}")
    ]
    assert (
        "simreduce: --algo: strategy (drct) contains"
        in simreduce("step", path, "--algo", "drct").err
    )


def test_every_fault_of_a_command_is_told_at_once(simreduce):
    """Those of the machine, of every option and of every strategy."""
    faults = (
        "missing/x: cannot be written",
        "switch:0: 0 devices",
        "--runtime: unknown runtime 'nope'",
        "--calibration: no calibration 'nope'",
        "--datatype: unknown dtype 'nope'",
        "-b: 'x' is not a size",
        "-e: 'y' is not a size",
        "-i: 'z' is not a size",
        "strategy (rng) contains invalid alg rng",
        "strategy not well formed: xring:4k",
    )
    status, out, err = simreduce(
        "bench",
        "switch:0",
        "--algo",
        "rng",
        "--algo",
        "xring:4k",
        "-b",
        "x",
        "-e",
        "y",
        "-i",
        "z",
        "-d",
        "nope",
        "--runtime",
        "nope",
        "--calibration",
        "nope",
        "-J",
        "missing/x",
    )

    assert (2, "") == (status, out)
    lines = zip(faults, err.splitlines(), strict=True)
    assert [] == [
        (fault, line) for fault, line in lines if not line.startswith(f"simreduce: {fault}")
    ]


@pytest.mark.parametrize("name", ["run", "bench", "topo"])
@pytest.mark.parametrize(
    "text", ["", ".", "..", "/", "a/b", "x" * 5000, "x" * 5000 + ".toml", "\udcff", "-", "x:y:z"]
)
def test_an_odd_name_is_told_in_a_few_words(simreduce, name, text):
    """Whatever stands where a machine or a scenario should."""
    status, out, err = simreduce(name, *(["show"] if name == "topo" else []), "--", text)

    assert (2, "") == (status, out)
    assert err.startswith("simreduce: ")
    assert len(err) < 400 + min(len(text), 2000)


def test_many_faults_are_counted_and_long_ones_cut(simreduce):
    """The first of them are enough to find the mistake; the end of a long one says what it is."""
    keys = "".join(f"key{i} = 1\n" for i in range(900))
    Path("many.toml").write_text(f'extends = "dgx1v"\n{keys}')
    many = simreduce("topo", "show", "many.toml")
    long = simreduce("bench", "full:2", "--collective", "x" * 50_000 + "\x1b[2J")
    option = simreduce("bench", "full:2", f"--{'x' * 50_000}\u202e")

    assert many.status == long.status == option.status == 2
    assert many.err.count("\n") == 41
    assert many.err.endswith("simreduce: and 860 more faults\n")
    for each in (many, long, option):
        assert len(each.err) < 10_000
        assert each.err.replace("\n", " ").isprintable()
    assert "more characters) ..." in option.err


HUGE = {
    "devices": ["bench", "switch:99999999999"],
    "machines": ["bench", "dgx1vx99999999"],
    "linked devices": ["verify", "--algo", "ring", "-g", "99999999"],
    "bytes": ["bench", "switch:2", "-b", "99999T"],
    "more bytes": ["bench", "switch:2", "-b", "1e400"],
    "bytes in many steps": ["bench", "switch:2", "-b", "4", "-e", "999T", "-i", "1"],
    "bytes in small factors": ["bench", "switch:2", "-b", "4", "-e", "999T", "-f", "1.0000001"],
    "packs": ["bench", "switch:2", "-b", "1M", "--algo", "ring+packs=99999999"],
    "digits of packs": ["bench", "switch:2", "--algo", "ring+packs=" + "9" * 5000],
    "digits of shards": ["bench", "switch:2", "--algo", "psgpu#" + "9" * 5000],
    "digits of a limit": ["bench", "switch:2", "--algo", "pscpu:" + "9" * 5000 + "k:ring"],
    "shards": ["bench", "switch:2", "--algo", "psgpu#99999999999999999999"],
    "elements": ["verify", "--algo", "ring", "--count", "99999999999999999999999"],
}


@pytest.mark.timeout(20)  # seconds: one that hangs is seen
@pytest.mark.parametrize("arguments", HUGE.values(), ids=HUGE)
def test_huge_figures_are_refused_at_once(simreduce, arguments):
    status, out, err = simreduce(*arguments)

    assert (2, "") == (status, out)
    assert err.startswith("simreduce: ")


def test_the_largest_figures_that_are_taken_are_worked_out(simreduce):
    """A pebibyte over a wire of a kilobyte a second: a long time, to the last digit."""
    status, out, err = simreduce(
        "bench",
        "switch:2,bandwidth=1kB/s,latency=0s",
        "-b",
        "1024T",
        "--algo",
        "ring",
        "--runtime",
        "ideal",
        "--json",
    )

    assert (0, "") == (status, err)
    assert pytest.approx(2**50 / 1e3 * 1e6) == json.loads(out)["rows"][0]["time_us"]


@pytest.mark.parametrize("option", ["--calibration", "--runtime"])
def test_an_empty_name_is_told(simreduce, option):
    """It is a name like another, and there is none of that name."""
    status, out, err = simreduce("run", "dgx1p-step-of-five", option, "")

    assert (2, "") == (status, out)
    assert "''" in err


@pytest.mark.parametrize("command", [("topo", "show"), ("run",), ("bench",)])
def test_a_file_without_an_end_is_refused(simreduce, command):
    """Instead of being read for ever."""
    status, out, err = simreduce(*command, "/dev/zero")

    assert (2, "") == (status, out)
    assert "more than 64 MiB, or without an end" in err


def test_a_full_disk_behind_the_output_is_told():
    """In one line, with status 2."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "simreduce", "topo", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (2, "simreduce: the output cannot be written: No space left on device\n") == (
        done.returncode,
        done.stderr,
    )


@pytest.mark.parametrize(
    "command",
    [("bench", "full:2", "-b", "1K", "-J"), ("step", "step.toml", "--trace")],
)
def test_what_was_worked_out_is_printed_although_a_file_cannot_be_written(simreduce, command):
    """A disk may be full when all is done."""
    Path("step.toml").write_text(
        'topology = "full:2"\nworkload = "bytes:64K"\nstrategies = ["ring"]\n[step]\nbatch '
        '= 1\ntime = "1 ms"\n'
    )
    whole, full = simreduce(*command, "there.json"), simreduce(*command, "/dev/full")

    assert (2, "simreduce: /dev/full: cannot be written: No space left on device\n") == (
        full.status,
        full.err,
    )
    assert (0, "") == (whole.status, whole.err)
    assert whole.out == full.out != ""


def test_a_file_that_may_not_be_written_is_told_before_the_work(simreduce, monkeypatch):
    """Whether it is there already, or its folder is what may not be written to."""
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((str(path), mode)))
    for place in ("good.toml", "folder/none.json", "none.json"):
        status, out, err = simreduce("bench", "full:2", "-J", place)

        assert (2, "") == (status, out)
        assert f"simreduce: {place}: cannot be written: you may not (see its permissions)\n" == err
    assert [("good.toml", os.W_OK), ("folder", os.W_OK), (".", os.W_OK)] == asked


def test_a_share_that_is_beyond_all_measure_is_a_slip(simreduce):
    """Of a link's bandwidth."""
    status, out, err = simreduce("bench", "full:2", "--fault", "gpu0@1us=1e300%")

    assert (2, "") == (status, out)
    assert "'1e300%' is not a share of a bandwidth, 0% or 0.0001% to 100%" in err


def _commands(group: click.Group, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of a group and of its groups, with the words that name it."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            if isinstance(found, click.Group):
                yield from _commands(found, *words, name)
            elif found:
                yield (*words, name), found


_TYPED = click.IntRange | click.FloatRange | click.Choice
_NUMBERS = [
    (words, each, param.opts[0])
    for words, each in _commands(cli)
    for param in each.params
    if isinstance(param.type, _TYPED) or param.type in (click.INT, click.FLOAT)
]


@pytest.mark.timeout(20)  # seconds: nothing is worked out
@pytest.mark.parametrize(
    ("words", "command", "option"), _NUMBERS, ids=[" ".join((*w, o)) for w, _, o in _NUMBERS]
)
def test_a_wrong_number_hides_no_other_fault(simreduce, words, command, option):
    """What the arguments name is looked for too, and nothing is done."""
    needed = [p for p in command.params if p.required or isinstance(p, click.Argument)]
    typed = [
        text
        for each in needed
        for text in (*each.opts[:1] * isinstance(each, click.Option), "nowhere.toml")
    ]
    if words == ("verify",):  # its files take no options
        needed, typed = [], ["--algo", "rng"]
    status, out, err = simreduce(*words, *typed, option, "@")

    assert (2, "") == (status, out)
    assert f"simreduce: {option}: " in err
    assert "nowhere.toml" in err or not needed or words == ("model",)
    assert "rng" in err or words != ("verify",)


MANY = {
    "sizes": (
        ["bench", "full:2", "-b", "nan", "-e", "xyz", "-f", "nan"],
        ["-f: must be a finite", "-b: 'nan' is not", "-e: 'xyz' is not"],
    ),
    "a tolerance and threads": (
        ["bench", "full:2", "--tolerance", "x", "-t", "0", "-n", "0"],
        ["-t: must be a whole", "-n: must be a whole", "--tolerance x: needs"],
    ),
    "all and some": (
        ["verify", "--all", "-g", "2", "-r", "1", "--algo", "ring"],
        [f"{option}: --all proves everything" for option in ("--algo", "--root", "--ngpus")],
    ),
    "nothing to prove": (
        ["verify", "--workers", "2"],
        ["--workers: for --all only", "say what to prove: --algo STRATEGY, --all, or a file"],
    ),
    "a search": (
        ["tune", "dgx1v-resnt50", "--target", "pytroch", "--objective", "tiem", "--workers", "0"],
        [
            "--workers: must be a whole",
            "--target: unknown 'pytroch' (did you mean 'pytorch'?)",
            "no scenario 'dgx1v-resnt50' (did you mean 'dgx1v-resnet50'?)",
            "--objective: must be one of time, step, got 'tiem' (did you mean 'time'?)",
        ],
    ),
    "settings of another system": (
        ["export", "pytroch", "dgx1vv", "--out", "none/none", "--method", "fsdp"],
        [
            "--out: none/none: is in no folder that is there",
            "unknown target 'pytroch' (did you mean 'pytorch'?)",
            "--method fsdp: only a scenario",
            "no topology 'dgx1vv' (did you mean 'dgx1v'?)",
        ],
    ),
    "rows of a sweep": (
        [
            *("table", "rows.db", "--where", "siz > 3", "--sort", "secnds", "--limit", "-1"),
            *("--columns", "sizee,seconds", "--group", "stratgy", "--pivot", "a"),
        ],
        [
            "--limit: must be a whole",
            "--pivot a: must be DOWN",
            "no column 'stratgy' (did you mean 'strategy'?)",
            "no column 'secnds' (did you mean 'seconds'?)",
            "no column 'sizee' (did you mean 'size'?)",
            "no column 'a'; there are",
            "--where siz > 3: no such column: siz (did you mean 'size'?)",
        ],
    ),
    "two sweeps": (
        ["compare", "none.db", "nil.db", "--sweeps", "x", "--tolerance", "-1"],
        ["--sweeps: whole numbers with commas", "--tolerance: ", "none.db: ", "nil.db: "],
    ),
    "names in a capacity file": (
        ["capacity", "names.toml"],
        [
            "names.toml: prices: no price list 'aws'",
            "names.toml: workload: no workload 'resnt50' (did you mean 'resnet50'?)",
            "names.toml: calibration: no calibration 'nominl' (did you mean 'nominal'?)",
            "names.toml: runtime: unknown runtime 'idel' (did you mean 'ideal'?)",
            "names.toml: options[0].strategy[0]: strategy (ncl) contains",
            "names.toml: options[0].network[1]: unknown fabric 'swtch' (did you mean 'switch'?)",
            "names.toml: options[0].nic[0]: unknown class of network link 'efa_10'",
            "names.toml: options[0].machine: no topology 'p4dd' (did you mean 'p4d'?)",
            "names.toml: options[0].method: must be one of ddp",
        ],
    ),
}


@pytest.mark.parametrize(("arguments", "faults"), MANY.values(), ids=MANY)
def test_faults_of_several_kinds_are_told_at_once(simreduce, arguments, faults):
    """Whether a number, a name, a column or SQL is wrong; each once."""
    Path("names.toml").write_text(
        'workload = "resnt50"\nprices = "aws"\ncalibration = "nominl"\nruntime = "idel"\n'
        '[step]\nbatch = 1\nrate = "1 TFLOP/s"\n[[options]]\nmachine = ["p4dd", "p4d", "p5"]\n'
        'strategy = ["ncl"]\nnetwork = ["switch", "swtch,x=2"]\nnic = ["efa_10"]\nmethod = "dpp"\n'
    )
    if "rows.db" in arguments:
        over = ("--over", "size=1K,2K", "--over", "strategy=ring,direct")
        assert simreduce("sweep", "full:2", *over, "--db", "rows.db").status == 0
    status, out, err = simreduce(*arguments)

    assert (2, "") == (status, out)
    lines = zip(faults, err.splitlines(), strict=True)
    assert [] == [(f, line) for f, line in lines if not line.startswith(f"simreduce: {f}")]
