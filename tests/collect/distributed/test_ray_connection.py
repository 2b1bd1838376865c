"""Connecting to a Ray cluster; no test of this file may start one, which RayRunner would use."""

import pytest
from toy_kernel import DEVICE, Toy

from foretune.errors import MeasurementError

pytest.importorskip("ray")

from foretune.collect.distributed.ray_runner import RayRunner


def test_ray_runner_without_cluster_is_refused():
    with pytest.raises(MeasurementError, match=r"no Ray cluster at 127.0.0.1:1 .*ray start --head"):
        RayRunner(Toy(), DEVICE, address="127.0.0.1:1")
