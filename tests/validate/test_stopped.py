"""`simreduce validate` that is stopped."""

import pytest
from simreduce_validate.cases import Stopped
from simreduce_validate.validate import _measured


class _Stopping:
    """A question whose measuring somebody stops."""

    def __init__(self, *rows):
        self.rows = rows

    def measure(self, _groups, _out):
        raise Stopped(self.rows, {"versions": {}})


def test_sizes_that_are_complete_are_kept():
    assert _measured(_Stopping("ring", "direct"), [], None) == (("ring", "direct"), {"versions": {}}, True)


def test_without_any_it_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        _measured(_Stopping(), [], None)
