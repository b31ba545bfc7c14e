"""Settings for every test: a quiet TensorFlow on the CPU, and repeatable examples."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def shaped_links():
    """Skip where links cannot be shaped, which is found out once."""
    from simreduce_validate.running.links import Links
    from simreduce_validate.running.shaped_links import shape_links

    from simreduce.errors import DeviceError, InputError

    for delay in (0.0, 1e-3):
        try:
            with shape_links(Links(2, 25e6, delay)):
                pass
        except (InputError, DeviceError) as error:
            pytest.skip(str(error).splitlines()[0])
