"""What is chosen for a call: filters, rules of a tuner, channels and threads, sends."""

from __future__ import annotations

import math
import time

import pytest

from simreduce.engine.setup import Setup
from simreduce.errors import InputError, StrategyError
from simreduce.files.formats.syntax import Faults
from simreduce.planners.layouts import Decision
from simreduce.planners.nccl import (
    DEFAULTS,
    SETTINGS,
    Settings,
    choose,
    facts,
    load_conf,
    p2p,
    read_settings,
)
from simreduce.planners.nccl.choice import Decide, estimates, plan
from simreduce.planners.nccl.constants import read_tuner
from simreduce.planners.nccl.nics import with_nics
from simreduce.topology import load_topology
from simreduce.topology.graph import fold

H100 = load_topology("dgx-h100")
MIB = 1 << 20


def _settings(**table):
    faults = Faults("test")
    found = read_settings(table, faults, "")
    assert [] == faults.problems
    return found


def _problems(**table):
    faults = Faults("test")
    read_settings(table, faults, "")
    return faults.problems


@pytest.mark.parametrize(
    ("table", "chosen"),
    [
        ({"NCCL_ALGO": "Ring"}, ("ring", "simple")),
        ({"NCCL_ALGO": "^NVLS"}, ("ring", "simple")),
        ({"NCCL_ALGO": "^NVLS,Ring", "NCCL_PROTO": "LL128"}, ("tree", "ll128")),
        ({"NCCL_PROTO": "^Simple"}, ("ring", "ll128")),
        ({"NCCL_ALGO": "Ring;allreduce:Tree"}, ("tree", "simple")),
        ({"NCCL_ALGO": "Tree;allgather:Ring"}, ("tree", "simple")),
        ({"NCCL_NVLS_ENABLE": "0"}, ("ring", "simple")),
    ],
)
def test_filters(table, chosen):
    """NCCL_ALGO and NCCL_PROTO leave what they name, or all but that."""
    found = choose(H100, "all_reduce", 256 * MIB, _settings(**table))

    assert chosen == (found.algorithm, found.protocol)


def test_a_filter_that_leaves_nothing_is_refused():
    """As NCCL does since 2.24; before, rings of other collectives were always left."""
    with pytest.raises(StrategyError, match="leave no algorithm"):
        choose(H100, "all_gather", MIB, _settings(NCCL_ALGO="Tree"))

    older = _settings(NCCL_ALGO="Tree", version="2.20")
    assert choose(H100, "all_gather", MIB, older).algorithm == "ring"


def test_every_fault_of_the_settings_at_once():
    """With the nearest spelling."""
    found = _problems(
        NCCL_ALG="Ring", NCCL_PROTO="LL129", NCCL_P2P_LEVEL="PIXX", version="3.1",
        NCCL_MIN_NCHANNELS=8, NCCL_MAX_NCHANNELS="4", NCCL_ALGO="ring;allredcue:tree",
    )  # fmt: skip

    assert found == [
        "test: NCCL_ALG: unknown key (did you mean 'NCCL_ALGO'?)",
        "test: version: must be a version from 2.4 to 2.32, such as 2.18, got '3.1'",
        "test: NCCL_ALGO: unknown collective 'allredcue' (did you mean 'allreduce'?)",
        "test: NCCL_PROTO: unknown name 'LL129' (did you mean 'll128'?)",
        "test: NCCL_P2P_LEVEL: unknown level 'PIXX' (did you mean 'PIX'?)",
        "test: NCCL_MIN_NCHANNELS: must be at most the maximum, 4",
    ]


def test_variables_without_a_model_are_refused_with_the_reason():
    """They are never ignored; the table stays what it is without them."""
    faults = Faults("test")

    found = read_settings({"NCCL_SHM_DISABLE": "1", "NCCL_MAX_CTAS": 4}, faults, "")

    assert found == Settings(max_ctas=4)
    why = "without shared memory GPUs that cannot copy directly meet over the network"
    assert faults.problems == [f"test: NCCL_SHM_DISABLE: not modelled: {why}"]


def test_every_variable_is_in_one_of_three_states():
    """It acts, nothing depends on it, or it is refused."""
    acts, idle, refused = {*SETTINGS.keys}, {*SETTINGS.idle}, {*SETTINGS.refused}

    assert not acts & idle
    assert not (acts | idle) & refused
    assert _problems(**dict.fromkeys(SETTINGS.idle, "x")) == []
    assert len(_problems(**dict.fromkeys(SETTINGS.refused, "1"))) == len(refused)
    assert _settings(NCCL_IB_DISABLE="0", NCCL_SHM_DISABLE=0) == Settings()
    assert _settings(**dict.fromkeys(SETTINGS.idle, "x")) == Settings()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("mlx5_1", "mlx5_1 mlx5_10"),
        ("=mlx5_1", "mlx5_1"),
        ("mlx5_1:1", "mlx5_1 mlx5_10"),
        ("mlx5_1:2", ""),  # the second port, which machines do not have
        ("^mlx5_1", "mlx5_0 mlx5_2"),
        ("^=mlx5_1,mlx5_2", "mlx5_0 mlx5_10"),
        ("=mlx5_0:1, mlx5_2:1", "mlx5_0 mlx5_2"),
        ("mlx5", "mlx5_0 mlx5_1 mlx5_2 mlx5_10"),
        ("", "mlx5_0 mlx5_1 mlx5_2 mlx5_10"),
    ],
)
def test_lists_of_devices_as_nccl_reads_them(text, kept):
    """matchIfList of its sources; plugins of other networks do not read NCCL_IB_HCA."""
    settings, names = _settings(NCCL_IB_HCA=text), ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10")

    assert [name for name in names if settings.takes_nic(name, "ib_ndr")] == kept.split()
    assert all(settings.takes_nic(name, "efa_400") for name in names)
    assert all(settings.takes_nic(name, "tcp_100") for name in names)
    assert not _settings(NCCL_SOCKET_IFNAME="eth").takes_nic("ena0", "tcp_25")


def test_nics_that_are_named_are_those_that_are_counted():
    """Every second NIC by name is `nics=4`, to the bit; without any, they are all named."""
    settings = _settings(NCCL_IB_HCA="=mlx5_0,mlx5_2,mlx5_4,mlx5_6")
    whole = load_topology("dgx-h100x2")
    named, counted = with_nics(whole, settings), load_topology("dgx-h100x2,nics=4")
    setups = [Setup(named, "nccl", nccl=settings), Setup(counted, "nccl")]
    seconds = [each.find_seconds(each.compile("nccl", "bytes:64M")) for each in setups]

    assert seconds[0] == seconds[1]
    assert len(facts(named, settings=settings).boxes[0].nics) == 4
    assert with_nics(load_topology("dgx-h100"), settings).digest == load_topology("dgx-h100").digest
    with pytest.raises(InputError, match="leaves no NIC; dgx-h100x2 has mlx5_0, mlx5_1, mlx5_2"):
        with_nics(whole, _settings(NCCL_IB_HCA="ibp"))


def test_old_names_stand_for_new_ones_unless_these_are_set():
    assert _settings(NCCL_MIN_NRINGS="4", NCCL_MAX_NRINGS=8) == Settings(
        min_channels=4, max_channels=8
    )
    assert _settings(NCCL_MAX_NRINGS=8, NCCL_MAX_NCHANNELS=2) == Settings(max_channels=2)


def test_conf_files(tmp_path):
    """Comments are left out; another form is a fault."""
    file = tmp_path / "nccl.conf"
    file.write_text("# mine\nNCCL_ALGO=Ring\nNCCL_DEBUG=INFO\n\nNCCL_MAX_NCHANNELS = 4\n")

    assert load_conf(str(file)) == {
        "NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO", "NCCL_MAX_NCHANNELS": "4",
    }  # fmt: skip
    file.write_text("NCCL_ALGO Ring\n")
    with pytest.raises(InputError, match="line 1: must be NAME=value"):
        load_conf(str(file))


@pytest.mark.parametrize(("low", "high", "channels"), [(None, 4, 4), (32, None, 32), (2, 64, 24)])
def test_limits_of_channels(low, high, channels):
    """NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS bound those that run."""
    settings = Settings(min_channels=low, max_channels=high, nvls=False)

    assert choose(H100, "all_reduce", 1 << 30, settings).channels == channels


def test_few_bytes_take_few_channels_and_threads():
    """Channels grow with the size, threads too, and neither above what there is."""
    found = [choose(load_topology("dgx-a100"), "all_reduce", 1 << s) for s in range(3, 33)]
    for protocol in ("ll", "ll128", "simple"):
        own = [f.channels for f in found if f.protocol == protocol]
        assert own == sorted(own)
    assert found[0].channels == 1
    assert found[0].threads == 128
    assert found[-1].channels == 24


RULES = """# a comment
allreduce,0,65536,tree,ll,2,-1,-1
allreduce,65537,4294967295,ring,simple,8,1,8,-1,-1
allgather,0,4294967295,nvls_tree,simple,-1,-1,-1
"""


def test_rules_of_a_tuner():
    """The first that matches wins; a choice that the machine does not have is passed over, and
    channels that a call does not fill are ignored. A call without a rule has one channel.
    """
    settings = Settings(tuner=read_tuner(RULES, "rules.csv"))

    small, large = (choose(H100, "all_reduce", size, settings) for size in (65536, 1 << 30))
    assert choose(H100, "all_reduce", 1024, settings).text == "nccl:tree+ll+channels=1"
    assert (small.text, large.text) == (
        "nccl:tree+ll+channels=2",
        "nccl:ring+simple+channels=8",
    )
    assert choose(H100, "all_gather", MIB, settings).algorithm == "ring"
    assert choose(load_topology("dgx-h100x2"), "all_reduce", 1 << 30, settings).channels == 1
    assert choose(H100, "all_reduce", 1 << 32, settings).channels == 1


def test_faults_of_a_tuner_are_all_there():
    """Each with its line."""
    with pytest.raises(InputError, match=r"unknown algorithm 'Ring'.*'ring'"):
        read_tuner("allreduce,0,1,Ring,ll,1,-1,-1", "")  # the plugin takes any other word for ring
    text = "allreduce,0,1,ring,ll,1\nallredcue,0,x,rong,ll,1,-2,-1\n"
    with pytest.raises(InputError) as caught:
        read_tuner(text, "rules.csv")

    assert caught.value.problems == (
        "rules.csv: line 1: must have 8, 9 or 10 fields, got 6",
        "rules.csv: line 2: unknown collective 'allredcue' (did you mean 'allreduce'?)",
        "rules.csv: line 2: max: must be a whole number of at least 0, got 'x'",
        "rules.csv: line 2: unknown algorithm 'rong' (did you mean 'ring'?)",
        "rules.csv: line 2: nNodes: must be a whole number of at least -1, got '-2'",
    )


def test_before_2_5_byte_thresholds_decide():
    """Trees between nodes up to a size, LL up to another; no estimate."""
    old = Settings(version=(2, 4))
    two, four, tcp = (load_topology(name) for name in ("dgx1vx2", "dgx1vx4", "v100-pcie-4x4"))

    assert choose(two, "all_reduce", 1 << 30, old).algorithm == "tree"
    assert choose(load_topology("dgx1v"), "all_reduce", 1024, old).algorithm == "ring"
    limit = 3 * 5000 * 8 * (6 * 31 - 30 - 28)
    for extra, algorithm in ((0, "tree"), (1, "ring")):
        assert choose(four, "all_reduce", limit + extra, old).algorithm == algorithm
    assert choose(tcp, "all_reduce", 10000 * (6 * 15 - 30 - 12) + 1, old).algorithm == "ring"
    last = 32 * 8 * 256 * 128
    for extra, protocol in ((0, "ll"), (1, "simple")):
        found = choose(four, "all_gather", last + extra, old)
        assert (found.protocol, found.channels) == (protocol, 8)
        assert math.isnan(found.seconds)


def test_sends():
    """LL for few bytes; NVLink gives a pair many channels, a NIC of 50 GB/s four.

    All pairs of eight ranks have four times as many as there are.
    """
    assert choose(H100, "all_to_all", 8 << 10).protocol == "ll"
    assert choose(H100, "send_receive", 1 << 30).text == "nccl+simple+channels=16"
    assert (p2p(H100).channels, p2p(H100).channels_per_peer, p2p(H100).chunk) == (32, 32, 512 << 10)
    two = p2p(load_topology("dgx-h100x2"))
    assert (two.channels, two.channels_per_peer, two.chunk) == (16, 4, 128 << 10)
    chunk = Settings(p2p_net_chunk=1 << 20)
    assert p2p(load_topology("dgx-h100x2"), chunk).chunk == 1 << 20


def test_an_unknown_collective_names_the_nearest():
    """In words."""
    with pytest.raises(StrategyError, match="did you mean 'all_reduce'"):
        choose(H100, "all_redcue", 1)


def test_folded_machines_choose_as_whole_ones():
    """One of equal machines says as much as all."""
    whole = load_topology("dgx-h100x4")
    for size in (1024, MIB, 1 << 30):
        assert choose(whole, "all_reduce", size) == choose(fold(whole), "all_reduce", size)
    assert facts(fold(whole, 1000)).n == 8000
    assert facts(whole).ranks == whole.devices


def test_some_of_the_gpus():
    """Two GPUs of an NVSwitch: no NVLS."""
    known = facts(H100, ["gpu0", "gpu5"])

    assert (known.n, known.ranks) == (2, ("gpu0", "gpu5"))
    assert choose(known, "all_reduce", 1 << 30).algorithm == "ring"


def test_one_gpu_sends_nothing():
    """And asks no model."""
    assert choose(load_topology("gh200"), "all_reduce", 1 << 20).channels == 1


def test_a_choice_is_fast_once_the_search_is_done():
    """Under a millisecond, here the best of five."""
    choose(H100, "all_reduce", 1 << 20)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        choose(H100, "all_reduce", 1 << 20)
        times.append(time.perf_counter() - began)

    assert min(times) < 1e-3


@pytest.mark.parametrize(
    ("machine", "collective", "wanted", "decided"),
    [
        ("dgx-h100", "all_reduce", Decision(), ("nvls", "simple", 16)),
        ("dgx-h100", "all_reduce", Decision("ring"), ("ring", "simple", 24)),
        ("dgx-h100", "all_reduce", Decision("", "ll128"), ("ring", "ll128", 24)),
        ("dgx-h100", "all_reduce", Decision("tree", "", 3), ("tree", "simple", 3)),
        ("gh200x8", "all_gather", Decision(), ("ring", "simple", 4)),
        ("gb200-nvl72", "all_gather", Decision(), ("ring", "simple", 32)),
        ("dgx1v", "all_to_all", Decision(), ("p2p", "simple", 2)),
    ],
)
def test_what_a_strategy_fixes_stays(machine, collective, wanted, decided):
    """The rest is NCCL's choice among what is left."""
    topology = load_topology(machine)
    found = Decide(topology, DEFAULTS)(topology.devices, collective, 1 << 30, wanted)

    assert decided == found[:3]


def test_what_nccl_lacks_is_refused():
    """NVLS without a switch that sums."""
    machine = load_topology("dgx-a100")
    with pytest.raises(StrategyError, match="NCCL has no nvls on dgx-a100"):
        Decide(machine, DEFAULTS)(machine.devices, "all_reduce", 1, Decision("nvls"))


@pytest.mark.parametrize(
    ("nbytes", "algorithm", "protocol", "channels"),
    [
        (256, "ring", "ll", 1),
        (4 << 10, "ring", "ll", 1),
        (MIB, "ring", "ll", 24),
        (2 * MIB, "nvls", "simple", 16),
        (4 << 30, "nvls", "simple", 16),
    ],
)
def test_choices_that_a_log_of_eight_h100_has(nbytes, algorithm, protocol, channels):
    """NCCL 2.30.7, every power of two from 256 B to 4 GiB: rings with LL up to 1 MiB, then NVLS."""
    found = choose(H100, "all_reduce", nbytes)

    assert (algorithm, protocol, channels) == (found.algorithm, found.protocol, found.channels)


def test_the_channels_of_a_gather_that_a_log_has():
    """Four GPUs of a Blackwell node with 2.28: 196,608 bytes of each rank, LL over 32 channels."""
    four = facts(load_topology("hgx-b200"), [f"gpu{i}" for i in range(4)])
    found = choose(four, "all_gather", 4 * 196_608, Settings(version=(2, 28)))

    assert (found.algorithm, found.protocol, found.channels) == ("ring", "ll", 32)


@pytest.mark.parametrize(("nbytes", "channels"), [(4096, 1), (8192, 2), (16384, 4), (32768, 4)])
def test_the_channels_of_small_trees_that_a_log_has(nbytes, channels):
    """Tree with LL on four channels: 4 KiB for each."""
    four = Settings(max_channels=4)
    found = choose(
        load_topology("dgx1vx2"), "all_reduce", nbytes, four, algorithm="tree", protocol="ll"
    )

    assert found.channels == channels


def test_choices_that_a_log_of_64_nodes_has():
    """NVIDIA/nccl issue 1752, 64 nodes of 8 H200: where NVLSTree begins, and its channels."""
    machine = load_topology("hgx-h200x64")
    small, large = (choose(machine, "all_reduce", size) for size in (16 * MIB, 32 * MIB))

    assert (small.text, large.text) == (
        "nccl:tree+ll128+channels=16",
        "nccl:nvlstree+simple+channels=16",
    )


@pytest.mark.parametrize(
    ("version", "nbytes", "channels", "part"),
    [
        ((2, 18), 3 << 20, 2, 2 << 20),
        ((2, 18), 64 << 20, 16, 0),
        ((2, 19), 100 << 10, 2, 64 << 10),
        ((2, 19), 3 << 20, 4, 0),
        ((2, 19), 64 << 20, 4, 0),
        ((2, 19), 65 << 20, 8, 0),
        ((2, 19), 256 << 20, 16, 0),
    ],
)
def test_a_send_fills_channels_until_it_has_all(version, nbytes, channels, part):
    found = choose(load_topology("dgx-a100"), "send_receive", nbytes, Settings(version=version))
    assert (channels, part) == (found.channels, found.part)


@pytest.mark.parametrize("algorithm", ["nvls", "nvlstree"])
def test_nvls_takes_no_more_channels_than_there_are(algorithm):
    """16 on a DGX H100; the message names the nearest that is possible."""
    decide, gpus = Decide(H100, DEFAULTS), tuple(H100.devices)
    most = Decision(algorithm, "simple", 16, 1 << 19)

    assert decide(gpus, "all_reduce", MIB, most).channels == 16
    with pytest.raises(StrategyError, match=r"up to 16 channels here, not 17: take \+channels=16"):
        decide(gpus, "all_reduce", MIB, most._replace(channels=17))


@pytest.mark.parametrize(
    ("machine", "gpus", "algorithms"),
    [
        ("dgx-h100", 4, ("ring", "ring")),
        ("dgx-h100", 5, ("nvls", "ring")),
        ("dgx-h100", 7, ("nvls", "nvls")),
        ("p6-b200", 5, ("ring", "ring")),
        ("p6-b200", 7, ("nvls", "ring")),
        ("p6-b200", 8, ("nvls", "nvls")),
    ],
)
def test_nvls_on_some_gpus_depends_on_the_version(machine, gpus, algorithms):
    """2.28 counts the heads of NVLS and caps them by the rate between nodes (`nvls.cc`); 2.27.7
    took it on 7 GPUs, as stas00/ml-engineering measured on p6-b200.
    """
    some = facts(load_topology(machine), [f"gpu{i}" for i in range(gpus)])
    found = [
        choose(some, "all_reduce", 8 << 30, Settings(version=version)).algorithm
        for version in ((2, 27), (2, 30))
    ]

    assert algorithms == tuple(found)


def test_efa_that_sends_and_receives_has_simple_alone():
    """Its plugin sets NCCL_PROTO=simple, but not over what the user sets."""
    for nbytes in (8, MIB, 256 * MIB):
        assert "simple" == choose(load_topology("p4dx2"), "all_reduce", nbytes).protocol
    by_user = choose(load_topology("p4dx2"), "all_reduce", 8, _settings(NCCL_PROTO="LL"))
    assert "ll" == by_user.protocol
    assert "ll" == choose(load_topology("p4d"), "all_reduce", 8).protocol
    assert "ll" == choose(load_topology("p5x2"), "all_reduce", 8).protocol


@pytest.mark.parametrize(("machine", "stated"), [("p5x2", 75), ("dgx-h100x2,nic=efa_200x2", 35)])
def test_the_latency_that_the_plugin_for_efa_states_counts(machine, stated):
    """Up and down a tree of two machines, and once more by Simple, which waits for the NIC."""
    other = estimates(plan(load_topology("dgx-h100x2")), "all_reduce", 8)
    efa = estimates(plan(load_topology(machine)), "all_reduce", 8)
    for protocol, times in (("ll", 2), ("simple", 4)):
        more = efa["tree", protocol] - other["tree", protocol]
        assert times * stated * 1e-6 == pytest.approx(more, rel=0.05)


def test_2_4_has_no_trees_where_the_user_wants_rings():
    pair = load_topology("p3dnx2")
    assert "tree" == choose(pair, "all_reduce", 8, _settings(version="2.4")).algorithm
    rings = _settings(version="2.4", NCCL_ALGO="Ring")
    assert "ring" == choose(pair, "all_reduce", 8, rings).algorithm


def test_limits_of_rings_are_not_those_of_nvls():
    """NCCL_MAX_NCHANNELS leaves NVLS its channels, and before 2.28 rings run as many."""
    machine = load_topology("dgx-h100")

    def channels(nbytes, minor, **settings):
        return choose(machine, "all_reduce", nbytes, Settings(version=(2, minor), **settings))

    assert channels(1 << 30, 27, max_channels=4).channels == 16
    assert channels(1 << 30, 27, max_ctas=4).channels == 4
    assert channels(1 << 30, 27, nvls_channels=8).channels == 8
    rings = [channels(1 << 19, minor, max_channels=4).channels for minor in (27, 30)]
    assert rings == [16, 4]


def test_small_calls_of_nvls_fill_few_channels():
    settings = Settings(version=(2, 27), protocols=(("", frozenset({"simple"})),))
    found = [choose(load_topology("dgx-h100"), "all_reduce", 1 << k, settings) for k in (10, 16)]

    assert [(each.algorithm, each.channels) for each in found] == [("nvls", 1), ("nvls", 8)]


def test_stated_threads_are_those_of_ll_and_simple():
    at = plan(load_topology("dgx1v"), Settings(threads=256))

    assert at.model.threads["ring", "ll"] == at.model.threads["tree", "simple"] == 256
    assert at.model.threads["ring", "ll128"] == 640
