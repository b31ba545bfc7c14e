"""The family of errors, and the helpers that word them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce import errors
from simreduce.errors import InputError, SimreduceError, did_you_mean, quote

FAMILY = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, SimreduceError)
]


@pytest.mark.parametrize("error", FAMILY)
def test_an_error_is_also_the_one_that_a_caller_would_guess(error):
    """Bad input is a ValueError, what goes wrong on the way a RuntimeError; each says when it is
    raised.
    """
    guess = (
        RuntimeError
        if error in (errors.Deadlock, errors.DeviceError, errors.InternalError)
        else ValueError
    )

    assert error is SimreduceError or issubclass(error, guess)
    assert error.__doc__


def test_bad_input_lists_every_fault():
    """One in each line of its text; one fault may be given alone."""
    error = InputError(["one", "two"])

    assert (("one", "two"), "one\ntwo") == (error.problems, str(error))
    assert ("one",) == InputError("one").problems


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("rng", " (did you mean 'ring'?)"),
        ("xrign", " (did you mean 'xring'?)"),
        ("XRING", " (did you mean 'xring'?)"),
        ("PSG", " (did you mean 'psgpu'?)"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_the_nearest_known_word_is_offered(word, text):
    """None, when none is near."""
    assert text == did_you_mean(word, ["ring", "xring", "psgpu"])


def test_what_is_shown_of_a_value_fits_a_line():
    """Its repr, cut; whole numbers too long to print are named by their type."""
    assert "'short'" == quote("short")
    assert "'" + "x" * 76 + "..." == quote("x" * 100)
    assert "this whole number" == quote(16**5000)
    assert "this list" == quote([16**5000])


@given(
    st.one_of(
        st.text(), st.integers(), st.lists(st.floats()), st.dictionaries(st.text(), st.text())
    )
)
def test_no_value_takes_more_than_a_line(value):
    """Whatever it is."""
    assert 1 <= len(quote(value)) <= 80
