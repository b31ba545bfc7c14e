"""Quantities as text: what is read, what is printed, what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from simreduce import dtypes, units
from simreduce.errors import InputError

DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
LETTERS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
PREFIXES = sorted({**DECIMAL, **BINARY}.items())

numbers = st.one_of(
    st.integers(0, 10**6).map(str),
    st.integers(0, 10**6).map(lambda n: f"{n // 1000}.{n % 1000:03}"),
    st.integers(0, 10**6).map(lambda n: f".{n:06}"),
    st.integers(0, 999).map(lambda n: f"{n}."),
    st.tuples(st.integers(0, 99), st.sampled_from(["e", "E"]), st.integers(-9, 4)).map(
        lambda t: f"{t[0]}{t[1]}{t[2]}"
    ),
)
spaces = st.sampled_from(["", " ", "  ", "\t"])


@given(numbers, st.sampled_from(PREFIXES), spaces, spaces)
def test_a_bandwidth_is_bytes_per_second_with_any_prefix(number, prefix, before, between):
    word, factor = prefix

    assert float(number) * factor == units.bandwidth(f"{before}{number}{between}{word}B/s{before}")


@given(numbers, st.sampled_from(sorted(DECIMAL.items())), st.sampled_from(["bit/s", "bps"]))
def test_bits_per_second_are_an_eighth_of_bytes_and_decimal(number, prefix, unit):
    word, factor = prefix

    assert math.isclose(
        float(number) * factor / 8, units.bandwidth(number + word + unit), rel_tol=1e-15
    )


@given(
    numbers,
    st.sampled_from(
        [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)]
    ),
)
def test_a_duration_is_seconds(number, unit):
    assert float(number) * unit[1] == units.duration(f"{number} {unit[0]}")


@given(numbers, st.sampled_from(PREFIXES))
def test_a_size_is_whole_bytes_without_rounding_on_the_way(number, prefix):
    word, factor = prefix
    exact = Fraction(number) * factor

    if exact.denominator == 1:
        assert exact == units.size(f"{number} {word}B")
    else:
        with pytest.raises(ValueError, match="is not a whole number of bytes"):
            units.size(f"{number} {word}B")


@given(numbers, st.sampled_from(sorted(LETTERS.items())), st.booleans())
def test_a_letter_on_the_command_line_is_a_power_of_1024_in_either_case(number, letter, lower):
    word, factor = letter
    exact, text = Fraction(number) * factor, number + (word.lower() if lower else word)

    if exact.denominator == 1:
        assert exact == units.cli_size(text)
    else:
        with pytest.raises(ValueError, match="is not a whole number of bytes"):
            units.cli_size(text)


@given(st.integers(0, 10**6), st.sampled_from([*PREFIXES, ("K", 10**3)]))
def test_a_unit_spelled_out_on_the_command_line_means_what_it_means_in_files(number, prefix):
    word, factor = prefix

    assert number * factor == units.cli_size(f"{number}{word}B") == units.size(f"{number} {word}B")


@given(st.integers(0, 2**63 - 1))
def test_every_whole_number_of_bytes_is_read_as_it_is(nbytes):
    assert nbytes == units.cli_size(str(nbytes)) == units.size(f"{nbytes} B")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (2, "2B"),
        (1536, "1536B"),
        (2**18, "256KiB"),
        (3 * 2**18, "768KiB"),
        (3 * 2**20, "3MiB"),
        (2**31, "2GiB"),
        (25 * 10**6, "25MB"),
        (10**9, "1GB"),
    ],
)
def test_a_short_size_reads_back_as_the_same_number(nbytes, text):
    assert text == units.short_size(nbytes)
    assert nbytes == units.cli_size(text)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(25e9, "25 GB/s"), (12.5e9, "12.5 GB/s"), (1e5, "0.0001 GB/s"), (1e9 / 3, f"{1e9 / 3!r} B/s")],
)
def test_an_exact_bandwidth_is_in_gigabytes_where_these_are_few_digits(rate, text):
    """Machine files that are written have the figures that one would write by hand."""
    assert text == units.exact_bandwidth(rate)
    assert rate == units.bandwidth(text)


@given(st.integers(0, 2**20 - 1), st.integers(0, 43))
def test_an_exact_size_reads_back_as_the_same_number_in_the_largest_binary_unit(number, power):
    text = units.exact_size(number << power)
    count, _ = text.split()

    assert number << power == units.size(text)
    assert int(count) % 1024 != 0 or text.endswith(" TiB") or text == "0 B"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("64 MiB", 64 * 2**20),
        ("64 MB", 64 * 10**6),
        ("1.005 kB", 1005),
        ("2.3 MB", 2_300_000),
        ("9007199254740993 B", 9007199254740993),
        ("0 B", 0),
        ("1e3 B", 1000),
    ],
)
def test_sizes_of_files(text, nbytes):
    assert nbytes == units.size(text)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("64M", 64 * 2**20),
        ("64m", 64 * 2**20),
        ("64MiB", 64 * 2**20),
        ("64MB", 64 * 10**6),
        ("512K", 2**19),
        ("512KB", 512_000),
        ("1048576", 2**20),
        ("0.5G", 2**29),
        ("2T", 2**41),
    ],
)
def test_sizes_of_the_command_line(text, nbytes):
    assert nbytes == units.cli_size(text)


@given(st.floats(1e-12, 1e9))
def test_a_printed_duration_reads_back_to_four_digits(seconds):
    assert math.isclose(seconds, units.duration(units.format_duration(seconds)), rel_tol=5.1e-4)


@given(st.floats(1e3, 1e18))
def test_a_printed_bandwidth_reads_back_to_four_digits(rate):
    assert math.isclose(rate, units.bandwidth(units.format_bandwidth(rate)), rel_tol=5.1e-4)


@given(st.integers(0, 2**60))
def test_a_printed_size_reads_back_to_four_digits(nbytes):
    assert math.isclose(nbytes, units.size(units.format_size(nbytes)), rel_tol=5.1e-4)


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("102.2 MB", units.format_size(102_236_324)),
        ("4 B", units.format_size(4)),
        ("10.02 ms", units.format_duration(0.010021)),
        ("1.8 us", units.format_duration(1.8e-6)),
        ("700 ns", units.format_duration(700e-9)),
        ("2.5 s", units.format_duration(2.5)),
        ("18.3 GB/s", units.format_bandwidth(18.3e9)),
    ],
)
def test_quantities_are_printed_with_four_digits(printed, value):
    assert printed == value


READERS = {
    "bandwidth": (units.bandwidth, "25 GB/s"),
    "duration": (units.duration, "1.5 us"),
    "size": (units.size, "64 MiB"),
    "cli_size": (units.cli_size, "64M"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GB/s",
        "-1",
        "-1 s",
        "+1 us",
        "1_0",
        "0x10",
        "nan",
        "inf s",
        "1,5 ms",
        "1 2",
        "1e9999 s",
        "²",
        "٣ s",
    ],
)
def test_what_is_no_quantity_is_refused_with_an_example(reader, text):
    read, example = READERS[reader]

    with pytest.raises(ValueError, match=f"'{example}'"):
        read(text)


@pytest.mark.parametrize("reader", ["bandwidth", "duration", "size"])
@pytest.mark.parametrize(
    "value", [25, 2.5, True, None, ["1 s"], {}, "25", pytest.param(16**5000, id="huge")]
)
def test_a_number_without_a_unit_is_refused_with_an_example(reader, value):
    read, example = READERS[reader]

    with pytest.raises(ValueError, match=f"has no unit; write .*'{example}'"):
        read(value)


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ("bandwidth", "25 GB"),
        ("bandwidth", "25 gb/s"),
        ("bandwidth", "25 Gbit"),
        ("duration", "1 sec"),
        ("duration", "1 GB/s"),
        ("size", "64 M"),
        ("size", "64 mb"),
        ("size", "64 GB/s"),
    ],
)
def test_an_unknown_unit_is_named(reader, text):
    read, example = READERS[reader]

    with pytest.raises(ValueError, match=f"unknown unit '{text.split()[1]}' .*'{example}'"):
        read(text)


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ("bandwidth", "1e308 TB/s"),
        ("duration", "1e308 h"),
        ("size", "1e300 B"),
        ("size", "9223372036854775808 B"),
        ("cli_size", "1e300"),
        ("cli_size", "1e999"),
        ("cli_size", "99999999T"),
    ],
)
def test_a_quantity_beyond_all_numbers_is_too_large(reader, text):
    with pytest.raises(ValueError, match="too large"):
        READERS[reader][0](text)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "text", ["9" * 5000, "0." + "0" * 5000 + "1", "9" * 5000 + " s", "1" + " " * 5000 + "s"]
)
def test_a_very_long_text_is_refused_in_one_line(reader, text):
    with pytest.raises(ValueError, match=r"\.\.\. is not a ") as caught:
        READERS[reader][0](text)

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("reader", READERS)
@given(text=st.text(max_size=12))
def test_any_text_is_read_as_a_finite_number_or_refused(reader, text):
    try:
        value = READERS[reader][0](text)
    except ValueError:
        return

    assert 0 <= value < math.inf


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_a_dtype_has_a_code_and_the_size_its_name_says(name):
    code = dtypes.code(name)

    assert name == dtypes.NAMES[code]
    assert int("".join(c for c in name if c.isdigit())) == 8 * dtypes.SIZES[code]


def test_nccl_tests_names_of_dtypes_are_known():
    assert ["float32", "float16", "float64"] == [
        dtypes.NAMES[dtypes.code(name)] for name in ("float", "half", "double")
    ]


def test_an_unknown_dtype_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"unknown dtype 'flaot32' \(did you mean 'float32'\?\)"):
        dtypes.code("flaot32")


def test_rates_of_computing_are_read_in_both_spellings():
    """Decimal, a second."""
    assert (6.5e12, 3e11, 1e15, 2e9) == tuple(
        units.flops(text) for text in ("6.5 TFLOP/s", "300 GFLOPS", "1PFLOP/s", "2 GFLOP/s")
    )
    with pytest.raises(ValueError, match="unknown unit 'TFLOP' for a rate of computing"):
        units.flops("5 TFLOP")
    with pytest.raises(ValueError, match="has no unit"):
        units.flops(5)


@pytest.mark.parametrize(
    ("rate", "text"), [(2651.12, "2651.1"), (3.0, "3.0"), (0.02338, "0.0234"), (0.0, "0.0")]
)
def test_a_slow_rate_has_digits_left(rate, text):
    assert text == units.format_rate(rate)
