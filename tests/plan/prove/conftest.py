"""A small model on this CPU, predicted by rooflines, and toy servers for it."""

from dataclasses import replace

import pytest

from foretune.device import Device
from foretune.plan import Formats, Layout, System, Workload
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.serve.deployments.deployment import Deployment

CPU = Device(
    "toy CPU",
    "cpu",
    architecture="x86_64+avx2",
    specs={"cores": 2, "fp32_gflops": 50, "memory_gbps": 10, "memory_gib": 8},
)


@pytest.fixture
def timers():
    return StepTimerFactory(None)


@pytest.fixture
def deployment(small) -> Deployment:
    return Deployment(
        model=replace(small, hidden=512, layers=8, intermediate=1024, vocab=1000),
        system=System.from_device(CPU),
        backend="vllm",
        layout=Layout(),
        formats=Formats(),
        workload=Workload(isl=32, osl=8),
        concurrency=8,
    )
