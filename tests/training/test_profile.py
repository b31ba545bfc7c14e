"""Times of layers: from one number, from a rate, from files, and what is wrong with files."""

from __future__ import annotations

from math import fsum

import pytest

from simreduce.errors import InputError
from simreduce.training import load_profile, profile_from_rate, profile_from_seconds
from simreduce.workload import Model
from simreduce.workload.loader import load_model

RESNET = load_model("resnet50")
LIST = Model("list", tuple(load_model("vgg16").layers[:2]))
FIRST, SECOND = (layer.name for layer in LIST.layers)


def refused(text: str, model: Model = LIST) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        load_profile(text, model)
    return caught.value.problems


def test_one_number_is_spread_by_flops():
    """Its sum stays, and a layer gets its share in each pass."""
    profile = profile_from_seconds(RESNET, 0.3)

    assert 0.3 == pytest.approx(profile.seconds)
    assert RESNET.layers[5].forward / RESNET.flops * 0.3 == pytest.approx(profile.forward[5])
    assert 2 * profile.forward[5] == pytest.approx(profile.backward[5])
    assert profile.forward[0] == profile.backward[0]


def test_a_list_of_unknown_work_is_spread_evenly():
    """A third of it forward."""
    profile = profile_from_seconds(load_model("bytes:4K"), 3.0)

    assert (1.0,) == pytest.approx(profile.forward)
    assert (2.0,) == pytest.approx(profile.backward)
    assert "evenly" in profile.source


def test_no_time_at_all():
    """Compute that takes nothing."""
    assert 0.0 == profile_from_seconds(RESNET, 0.0).seconds


def test_a_rate_gives_flops_over_flops_per_second():
    """Of all samples; a list has no FLOPs."""
    profile = profile_from_rate(RESNET, 64, 7e12)

    assert 64 * RESNET.flops / 7e12 == pytest.approx(profile.seconds)
    assert 64 * RESNET.forward / 7e12 == pytest.approx(fsum(profile.forward))
    with pytest.raises(InputError, match="nobody counted its FLOPs"):
        profile_from_rate(load_model("bytes:4K"), 1, 1e12)


def test_what_nobody_counted_is_told(write):
    """It takes no time, which a rate is not asked for where there are gradients; what is said to be
    free is no such thing.
    """
    layer = "[[layers]]\nname = '{}'\ngradients = [{{ name = '{}', elements = 4 }}]\n"
    text = layer.format("a", "a") + "[[layers]]\nname = 'b'\nforward = '1 GFLOP'\n"
    free = layer.format("c", "c") + "forward = '0 FLOP'\n"
    some = load_model(write("some.toml", text + free))
    none = load_model(
        write("none.toml", text.replace("gradients", "forward = '0 FLOP'\ngradients") + free)
    )

    assert "one number, spread by FLOPs; nothing for 1 of 3 layers, whose FLOPs nobody counted" == (
        profile_from_seconds(some, 1.0).source
    )
    assert "one number, spread by FLOPs" == profile_from_seconds(none, 1.0).source
    assert 3e9 / 1e12 == pytest.approx(profile_from_rate(none, 1, 1e12).seconds)
    with pytest.raises(InputError, match=r"some\.toml: nobody counted the FLOPs of 'a'; give them"):
        profile_from_rate(some, 1, 1e12)


def test_files_give_times_with_units(write):
    """In the model's order, whatever that of the file."""
    rows = f'# measured\nlayer,forward,backward\n\n{SECOND},2 ms,500 us\n"{FIRST}", 1 ms ,0.25s\n'
    tables = "".join(
        f'[[layers]]\nlayer = "{n}"\nforward = "{f}"\nbackward = "{b}"\n'
        for n, f, b in ((SECOND, "2 ms", "500 us"), (FIRST, "1 ms", "250 ms"))
    )
    for profile in (
        load_profile(write("a.csv", rows), LIST),
        load_profile(write("a.toml", 'title = "x"\n' + tables), LIST),
    ):
        assert ((0.001, 0.002), (0.25, 0.0005)) == (profile.forward, profile.backward)
    assert "profile a.csv" == load_profile("a.csv", LIST).source


def test_every_fault_of_a_file_is_told_at_once(write):
    """With its line."""
    path = write(
        "bad.csv",
        f"layer,forward,backward\n{FIRST},1,2 ms\ncg/conv9,1 ms,\n{FIRST},1 parsec,3 ms\n",
    )

    assert (
        "bad.csv: line 2: forward: '1' has no unit; write for example '1.5 us' or '700 ns'",
        "bad.csv: line 3: backward: missing; must be a time",
        (
            "bad.csv: line 4: forward: '1 parsec': unknown unit 'parsec' for a time; write for "
            "example "
            "'1.5 us' or '700 ns'"
        ),
        "bad.csv: line 3: list has no layer 'cg/conv9' (did you mean 'cg/conv1'?)",
        f"bad.csv: line 4: a second row for '{FIRST}'",
    ) == refused(path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "", "a.csv: empty; the first line names the columns: layer,forward,backward"),
        ("a.csv", f"layer,forward,backward\n{FIRST},1 ms,1 ms\n", f"a.csv: no times for {SECOND}"),
        (
            "a.csv",
            "layer,forward,backward\na,1 ms\n",
            "a.csv: line 2: 2 fields where the header has 3",
        ),
        (
            "a.csv",
            'layer,forward,backward\n"a,1 ms,2 ms\n',
            "a.csv: line 2: unexpected end of data",
        ),
        (
            "a.csv",
            "layer,forward,bakward\n",
            "a.csv: line 1: bakward: unknown key (did you mean 'backward'?)",
        ),
        (
            "a.toml",
            "layers = 3",
            "a.toml: layers: must be [[layers]] tables with layer, forward, backward, got 3",
        ),
        ("a.toml", "[[layer]]", "a.toml: layer: unknown key (did you mean 'layers'?)"),
        (
            "a.toml",
            "[[layers]]\nlayer = 3\nforward = 1\nbackward = '1 ms'",
            "a.toml: layers[0].layer: must be text, got 3",
        ),
        (
            "a.csv",
            f"layer,forward,backward\n{FIRST},1 ms,1 ms\n{FIRST},1 ms,1 ms\n",
            f"a.csv: line 3: a second row for '{FIRST}'",
        ),
    ],
)
def test_what_is_wrong_with_a_file(write, name, content, says):
    assert says == refused(write(name, content))[0]


def test_a_file_that_is_not_there():
    assert ("none.csv: there is no such file",) == refused("none.csv")


def test_without_a_model_the_file_is_read_all_the_same(write):
    """Its model has faults of its own, and those of the file are told beside them."""
    name = write("a.csv", "layer,forward,backward\na,1 ms,2\n")

    assert load_profile(write("b.csv", "layer,forward,backward\na,1 ms,2 ms\n"), None) is None
    with pytest.raises(InputError, match=r"a.csv: line 2: backward: '2' has no unit"):
        load_profile(name, None)
