"""Whether links can be shaped on this machine, found out once."""

from __future__ import annotations

import functools

from simreduce_validate.running.links import Links
from simreduce_validate.running.shaped_links import shape_links

from simreduce.errors import DeviceError, InputError


@functools.cache
def possible():
    """Why not, in one line; "" if they can be."""
    for delay in (0.0, 1e-3):
        try:
            with shape_links(Links(2, 25e6, delay)):
                pass
        except (InputError, DeviceError) as error:
            return str(error).splitlines()[0]
    return ""
