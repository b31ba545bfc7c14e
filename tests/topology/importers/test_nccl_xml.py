"""NCCL's topology XML: what it means, what is refused, and that it is written back as the same
machine.
"""

from __future__ import annotations

import re

import pytest

from simreduce.errors import TopologyError
from simreduce.planners.nccl import facts
from simreduce.topology import (
    Topology,
    link_classes,
    load_topology,
    matrix_text,
    path_class,
    route,
    shipped,
)
from simreduce.topology.importers import to_nccl_xml
from simreduce.topology.importers.nccl_xml import read_nccl_topology
from simreduce.topology.importers.parts import model_named, with_nvlinks
from simreduce.topology.machine_files import to_toml
from simreduce.topology.routing import GPU_LINKS
from tests.topology.importers.files import BARE_XML, PAIR_XML, RCCL_XML, XML


def imported(text: str, **options) -> Topology:
    return read_nccl_topology(text, "x.xml", **options)[0]


def links(machine: Topology) -> list[tuple[str, str, str, int]]:
    return sorted(
        (k.source, k.target, k.link_class, k.lanes) for k in machine.links if not k.is_toll
    )


def rates(machine: Topology) -> dict[str, float]:
    """Of the networks that NICs have ports for; the XML has no names of classes."""
    nics = [node for node in machine.nodes.values() if node.kind == "nic"]
    return {node.name: link_classes()[node.network].bandwidth for node in nics if node.network}


def test_gpus_hang_where_the_file_says():
    box = imported(XML)

    assert box.devices == ("gpu0", "gpu1")
    assert [path_class(box, "gpu0", other) for other in ("gpu1", "mlx5_0", "cpu0")] == [
        "NV4",
        "PIX",
        "PHB",
    ]
    assert path_class(box, "gpu1", "mlx5_0") == "SYS"
    assert [
        (k.link_class, k.lanes) for k in box.links if (k.source, k.target) == ("gpu0", "nvswitch0")
    ] == [("nvlink3", 4)]
    assert {k.link_class for k in box.links if k.source == "gpu1"} >= {"pcie4_x8"}
    assert {k.link_class for k in box.links if k.source == "cpu0"} == {"pcie4_x16", "xgmi"}
    assert box.nodes["gpu0"].model == "A100"


def test_direct_links_count_once():
    pair = imported(PAIR_XML)

    assert [
        (k.link_class, k.lanes) for k in pair.links if (k.source, k.target) == ("gpu0", "gpu1")
    ] == [("nvlink2", 2)]


def test_bridged_gpus_by_their_compute_capability():
    """Of the models of 8.6, only some have NVLinks."""
    ampere = PAIR_XML.replace('sm="70"', 'sm="86"')
    pair, notes = read_nccl_topology(ampere, "x.xml")

    assert "the GPUs are taken for RTX3090; --gpu names other models" in notes
    assert pair.router.route("gpu0", "gpu1").path == ("gpu0", "gpu1")
    assert "nvlink3_ga102" in {link.link_class for link in pair.links}
    with pytest.raises(TopologyError, match="line 2: A10G has no NVLinks, but the file shows 2 at"):
        read_nccl_topology(ampere, "x.xml", model_named("A10G"))


def test_devices_that_do_not_say_what_they_are():
    box, notes = read_nccl_topology(BARE_XML, "x.xml", model_named("A10G"), nics=["0000:00:15.0"])

    assert box.devices == ("gpu0", "gpu1", "gpu2")
    assert [node.name for node in box.nodes.values() if node.kind == "nic"] == ["nic0"]
    assert path_class(box, "gpu2", "nic0") == "PHB"
    assert any("3 devices have no class" in note for note in notes)


@pytest.mark.parametrize(
    ("speeds", "network", "told"),
    [
        (["400000"], "ib_ndr", False),
        (["200000"], "ib_hdr", False),
        (["100000", "100000"], "ib_hdr", False),  # two ports of one NIC
        (["56000"], "ib_fdr", False),
        (["25000"], "tcp_25", False),
        (["32000"], "tcp_25", True),
        (["800000"], "ib_ndr", True),
        (["0"], "", False),
        ([""], "", False),
    ],
)
def test_the_speed_of_a_nic_says_which_network_it_has_a_port_for(speeds, network, told):
    nets = "".join(
        f'<net name="mlx5_{i}"{speed and f" speed={speed!r}"}/>' for i, speed in enumerate(speeds)
    )
    text = XML.replace('<net name="mlx5_0" dev="0" speed="200000" port="1"/>', nets)
    assert nets in text

    box, notes = read_nccl_topology(text, "x.xml")

    assert box.nodes["mlx5_0"].network == network
    assert any(f"{network} is the nearest" in note for note in notes) == told


def test_an_imported_machine_joins_the_network_of_its_nics(tmp_path):
    path = tmp_path / "box.toml"
    path.write_text(to_toml(imported(XML)))

    assert {k.link_class for k in load_topology(f"{path}x2").links if k.target == "n0.mlx5_0"} >= {
        "ib_hdr"
    }


@pytest.mark.parametrize("text", [XML, PAIR_XML, BARE_XML])
def test_written_and_read_again_a_machine_is_the_same(text):
    box = imported(text)
    again = imported(to_nccl_xml(box))

    assert again.digest == box.digest


@pytest.mark.parametrize("name", [n for n, _ in shipped() if "gb200" not in n and n != "frontier"])
def test_a_shipped_machine_comes_back_with_its_matrix(name):
    """The format does not say how sockets are joined, what a CPU's links to its GPU are but PCIe,
    and how NVSwitches are joined; all else comes back. Frontier's ports are no PCIe ports.
    """
    box = load_topology(name)
    again = imported(to_nccl_xml(box))

    assert matrix_text(again) == matrix_text(box)
    assert rates(again) == rates(box)
    nvlinks = [
        k for k in links(box) if k[2].startswith(GPU_LINKS) and "nvswitch" not in k[0] + k[1]
    ]
    assert [
        k for k in links(again) if k[2].startswith(GPU_LINKS) and "nvswitch" not in k[0] + k[1]
    ] == nvlinks


def test_an_export_says_what_nccl_would_else_look_up():
    """The generation of each GPU; and no bus id that a host bridge may have."""
    for name, _ in shipped():
        text = to_nccl_xml(load_topology(name))
        assert text.count("<gpu ") == len(re.findall(r"<gpu [^>]*sm=.[1-9]", text)), name
        assert 'busid="0000' not in text


@pytest.mark.parametrize(
    ("name", "arch", "vendor", "model"),
    [
        ("k80-8", "x86_64", "GenuineIntel", "85"),
        ("pcie-dual-root-4", "x86_64", "GenuineIntel", "79"),
        ("dgx-h100", "x86_64", "GenuineIntel", "143"),
        ("hgx-b200", "x86_64", "GenuineIntel", "207"),
        ("rtx4090-2", "x86_64", "AuthenticAMD", "49"),
        ("snellius", "x86_64", "AuthenticAMD", "17"),
        ("gh200", "arm64", "ARM", "0"),
        ("alps", "arm64", "ARM", "0"),
    ],
)
def test_an_export_names_the_maker_of_every_cpu(name, arch, vendor, model):
    """On x86, NCCL adds what is not there of the machine that it runs on."""
    text = to_nccl_xml(load_topology(name))

    said = f'arch="{arch}" vendor="{vendor}" familyid="6" modelid="{model}"'
    assert text.count("<cpu ") == text.count(said)


@pytest.mark.parametrize(
    ("model", "link", "rate"),
    [
        ("63", "qpi", 19.2e9),
        ("79", "qpi", 19.2e9),
        ("85", "upi", 20.8e9),
        ("106", "upi", 20.8e9),
        ("173", "upi2", 32e9),
        ("207", "upi2", 40e9),
        ("", "upi", 20.8e9),
    ],
)
def test_links_of_intel_s_sockets_by_generation(model, link, rate):
    """A model that is not listed counts as the last one below it, as in NCCL."""
    text = XML.replace("AuthenticAMD", "GenuineIntel").replace('modelid="49"', f'modelid="{model}"')
    (socket,) = (k for k in imported(text).links if (k.source, k.target) == ("cpu0", "cpu1"))

    assert (socket.link_class, socket.nominal / socket.lanes) == (link, rate)


@pytest.mark.parametrize(
    ("name", "latency", "network"),
    [("p4d", "75", "efa_100"), ("p5", "75", "efa_100x4"), ("p5en", "35", "efa_200x2")],
)
def test_the_latency_of_efa_s_plugin_is_exported_and_tells_the_network(name, latency, network):
    text = to_nccl_xml(load_topology(name))

    assert text.count("<net ") == text.count(f' latency="{latency}"')
    assert {n.network for n in imported(text).nodes.values() if n.kind == "nic"} == {network}
    assert " latency=" not in to_nccl_xml(load_topology("dgx-h100"))


@pytest.mark.parametrize(
    ("adapter", "speed", "network"),
    [
        ('device="0xefa0"', "", "efa_100"),
        ('device="0xEFA1"', "", "efa_100"),
        ('device="0xefa2"', "", ""),
        ('device="0xefa2"', 'speed="400000"', "efa_100x4"),
        ('device="0xec20"', 'speed="100000"', "ib_edr"),
    ],
)
def test_an_adapter_of_amazon_s_is_efa(adapter, speed, network):
    """Files of AWS name it, and state no rate."""
    text = XML.replace('class="0x020700"', f'class="0x020000" vendor="0x1d0f" {adapter}')
    box = imported(text.replace('speed="200000"', speed))

    assert box.nodes["mlx5_0"].network == network


def test_ports_of_one_nic_count_as_one():
    net = '<net name="mlx5_0" dev="0" speed="200000" port="1"/>'
    _, notes = read_nccl_topology(XML.replace(net, net + net.replace("_0", "_1")), "x.xml")

    assert "the ports of a NIC count as one, as NCCL joins them from 2.24 on" in notes
    assert not any("ports" in note for note in read_nccl_topology(XML, "x.xml")[1])


def test_what_the_format_cannot_say():
    with pytest.raises(TopologyError, match="is of one machine"):
        to_nccl_xml(load_topology("dgx1vx2"))
    with pytest.raises(TopologyError, match="hangs on no CPU"):
        to_nccl_xml(load_topology("full:3"))


def test_nvlinks_for_files_that_show_none():
    box = imported(BARE_XML, model=model_named("A100"))

    switched = with_nvlinks(box, "switch", load_topology)
    assert path_class(switched, "gpu0", "gpu3") == "NV12"
    assert {
        k.lanes for k in with_nvlinks(box, "mesh", load_topology).links if k.link_class == "nvlink3"
    } == {4}
    # GPU i of the file is GPU order[i] of the machine.
    turned = with_nvlinks(imported(BARE_XML), "v100-mesh-4:3,2,1,0", load_topology)
    assert path_class(turned, "gpu0", "gpu1") == "NV2"
    for text, fault in {
        "v100-mesh-4:0,0,1,2": "each of 0 to 3 once",
        "dgx1v": "each of 0 to 7 once",
        "nothing": "no topology 'nothing'",
    }.items():
        with pytest.raises(TopologyError, match=fault):
            with_nvlinks(box, text, load_topology)
    with pytest.raises(TopologyError, match="NVLinks of its own"):
        with_nvlinks(switched, "mesh", load_topology)
    with pytest.raises(TopologyError, match="name a model"):
        with_nvlinks(imported(BARE_XML), "switch", load_topology)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "x.xml: line 1: not well-formed XML: no element found"),
        ("<system>", "not well-formed"),
        ("<graphs/>", "begins with <system>, not <graphs>"),
        ("<system/>", "line 1: no <cpu>"),
        ('<system><cpu numaid="0"/></system>', "no GPU"),
        (XML.replace('numaid="1"', 'numaid="0"'), "two CPUs with numaid 0"),
        (
            XML.replace("0000:87:00.0", "0000:07:00.0"),
            "bus id '0000:07:00.0' is that of line 5 too",
        ),
        (XML.replace('link_width="8"', 'link_width="7"'), "link_width '7'"),
        (XML.replace('"16.0 GT/s PCIe"', '"fast"'), "link_speed 'fast'"),
        (XML.replace('count="2"', 'count="two"', 1), "count 'two' is not a number of NVLinks"),
        (
            PAIR_XML.replace('count="2"', 'count="1"', 1),
            "gpu0 states 1 NVLinks to gpu1, and gpu1 states 2 to gpu0",
        ),
        (
            PAIR_XML.replace('target="0000:09:00.0"', 'target="0000:99:00.0"'),
            "target '0000:99:00.0'",
        ),
        (
            XML.replace('class="0x030200"', 'class="gpu"')
            .replace("<gpu ", "<g ")
            .replace("</gpu", "</g"),
            "class",
        ),
        (
            XML.replace('speed="200000"', 'speed="200 Gbit/s"'),
            "line 12: speed '200 Gbit/s' is not a number of Mbit/s",
        ),
    ],
)
def test_faults(text, fault):
    with pytest.raises(TopologyError) as caught:
        imported(text)
    assert any(fault in problem for problem in caught.value.problems), caught.value.problems


def test_links_that_lead_nowhere_are_left_out_and_told():
    """A container shows some of the GPUs; a GPU that lists itself is behind a bridge that the
    hypervisor hides.
    """
    away = PAIR_XML.replace(
        '<nvlink target="0000:0a:00.0" count="2"/>',
        '<nvlink target="0000:99:00.0" count="2" tclass="0x030200"/>',
    )
    away = away.replace(
        '<nvlink target="0000:09:00.0" count="2"/>',
        '<nvlink target="0000:0a:00.0" count="1" tclass="0x030200"/>',
    )
    box, notes = read_nccl_topology(away, "x.xml")

    assert not any(k.link_class.startswith("nvlink") for k in box.links)
    assert notes[-2:] == [
        "line 2: 2 NVLinks of gpu0 are left out, to '0000:99:00.0', which is not in the file",
        "line 3: 1 NVLinks of gpu1 are left out, to itself",
    ]


def test_gpus_on_nvlinks_of_their_cpu():
    """Power 9: three links from each GPU to its socket. Two GPUs that these join are not linked."""
    text = PAIR_XML.replace(
        'target="0000:0a:00.0" count="2"', 'target="0004:04:00.0" count="3" tclass="0x068001"'
    )
    text = text.replace(
        'target="0000:09:00.0" count="2"', 'target="0004:04:01.0" count="3" tclass="0x068001"'
    )
    box = imported(text)

    assert [
        (k.link_class, k.lanes) for k in box.links if (k.source, k.target) == ("gpu1", "cpu0")
    ] == [
        ("pcie3_x16", 1),
        ("nvlink2", 3),
    ]
    assert route(box, "gpu0", "cpu0").bandwidth == 72e9
    assert imported(to_nccl_xml(box)).digest == box.digest
    assert path_class(box, "gpu0", "gpu1") == "PHB"


def test_grace_hangs_its_gpu_on_c2c_alone():
    """The PCIe port beside C2C carries no copies; Grace sockets have links of their own."""
    text = """<system version="1"><cpu numaid="0" arch="arm64">
    <pci busid="0009:01:00.0" class="0x030200" link_speed="16 GT/s">
    <gpu dev="0" sm="90"><c2c bw="38225" count="10"/></gpu></pci></cpu>
    <cpu numaid="1" arch="arm64"/></system>"""
    box = imported(text)

    assert [(k.source, k.target, k.link_class) for k in box.links[::2]] == [
        ("cpu0", "cpu1", "grace_link"),
        ("gpu0", "cpu0", "c2c"),
    ]


def test_a_nic_without_a_place_on_pcie_hangs_on_its_cpu():
    text = PAIR_XML.replace("</cpu>", '<nic><net name="hsn0" dev="0"/></nic></cpu>')

    assert path_class(imported(text), "gpu0", "hsn0") == "PHB"


BOMB = (
    '<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefg", "bcdefgh", strict=True))
    + "]><system>&h;</system>"
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (BOMB, "a document type or an entity is declared"),
        (
            '<!DOCTYPE system SYSTEM "file:///etc/hostname"><system/>',
            "a document type or an entity is declared",
        ),
        (
            '<!DOCTYPE s [<!ENTITY e SYSTEM "file:///etc/hostname">]><system>&e;</system>',
            "a document type or an entity",
        ),
        ("<system>&e;</system>", "undefined entity"),
        ("<a>" * 70 + "</a>" * 70, "64 one inside the other"),
        ("<a>" + "<b/>" * 60_000 + "</a>", "more than 50000 elements"),
        ("<system " + " ".join(f"a{i}='x'" for i in range(100)) + "/>", "64 attributes"),
        ("<system>" + " " * (5 << 20) + "</system>", "more than 4 MiB of XML"),
        ("<system>\0</system>", "zero byte"),
    ],
    ids=[
        "entities",
        "external subset",
        "external entity",
        "undefined",
        "deep",
        "many",
        "attributes",
        "long",
        "zero",
    ],
)
def test_xml_that_means_harm_is_refused(text, fault):
    with pytest.raises(TopologyError, match=fault):
        imported(text)


def test_rccls_file_has_xgmi_links_and_the_target_of_the_compiler():
    machine = imported(RCCL_XML)

    assert {node.model for node in machine.nodes.values() if node.kind == "gpu"} == {"MI350X"}
    assert [(k.link_class, k.nominal) for k in links_between(machine, "gpu0", "gpu1")] == [
        ("xgmi_cdna4", 76.8e9)
    ]
    assert path_class(machine, "gpu0", "bnxt_re0") == "PIX"
    assert machine.nodes["bnxt_re0"].network
    assert [k.link_class for k in links_between(machine, "cpu0", "cpu1")] == ["xgmi3"]
    old = RCCL_XML.replace('gcn="gfx950"', 'gcn="910"')
    assert imported(old).nodes["gpu0"].model == "MI250X"


def test_a_target_that_is_like_no_other_is_refused_with_those_that_are_known():
    with pytest.raises(TopologyError) as caught:
        imported(RCCL_XML.replace('gcn="gfx950"', 'gcn="tahiti"'))

    words = caught.value.problems[0]
    known = words.partition("; known are ")[2].partition(";")[0].split(", ")
    assert "gcn 'tahiti' is no known target; known are gfx" in words
    assert known == sorted(known)
    assert {"gfx90a", "gfx942", "gfx950"} <= {*known}


def links_between(machine, a, b):
    return [link for link in machine.links if (link.source, link.target) == (a, b)]


def test_faults_of_rccls_file():
    text = RCCL_XML.replace('gcn="gfx950"', 'gcn="gfx95"').replace('count="1"', 'count="x"')
    with pytest.raises(TopologyError) as caught:
        imported(text)

    faults = "\n".join(caught.value.problems)
    assert faults.count("did you mean 'gfx950'?") == 2
    assert faults.count("'x' is not a number of xGMI links") == 2
    with pytest.raises(TopologyError, match="NVLinks, but a MI350X has xGMI links"):
        imported(RCCL_XML.replace("<xgmi", "<nvlink"))


def test_hosts_without_links_between_sockets_are_intel_s_unless_stated():
    """A machine of one socket says its maker by the model of its CPU."""
    intel, amd = (to_nccl_xml(load_topology(name)) for name in ("k80-8", "rtx4090-2"))

    assert 'arch="x86_64" vendor="GenuineIntel"' in intel
    assert 'arch="x86_64" vendor="AuthenticAMD"' in amd
    assert "arm64" not in intel + amd


_CARD = """<system version="1"><cpu numaid="0">
<pci busid="0000:01:00.0" class="0x030000" vendor="0x10de" device="{}" link_width="16">
<gpu dev="0" sm="89"/></pci></cpu></system>"""


def test_a_device_says_which_of_a_capability_a_gpu_is():
    box, notes = read_nccl_topology(_CARD.format("0x26b9"), "x.xml")

    gpu = box.nodes["gpu0"]
    assert (gpu.model, gpu.memory, gpu.peer, gpu.gpudirect) == ("L40S", 48 * 10**9, "PHB", "P2C")
    assert not any("taken" in note and "GPU" in note for note in notes)


def test_a_device_that_is_not_known_is_no_other_gpu():
    box, notes = read_nccl_topology(_CARD.format("0x26ff"), "x.xml")

    assert (box.nodes["gpu0"].model, box.nodes["gpu0"].memory) == ("sm89", 0)
    assert facts(box).capability == facts(imported(to_nccl_xml(box))).capability == 89
    assert "GPU 0x26ff is no model known: --gpu names a model" in notes


@pytest.mark.parametrize("name", ["hgx-h200", "l40s-8", "rtx3090-8", "p4de"])
def test_an_exported_gpu_comes_back_as_itself(name):
    machine = load_topology(name)
    again = imported(to_nccl_xml(machine))

    figures = [
        {(node.memory_bandwidth, node.memory) for node in box.nodes.values() if node.kind == "gpu"}
        for box in (machine, again)
    ]
    assert figures[0] == figures[1]
