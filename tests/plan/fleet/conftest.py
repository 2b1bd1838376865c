"""Types of instances whose fleets can be computed by hand."""

from collections.abc import Callable, Sequence

import pytest

from foretune.plan import Formats, Layout
from foretune.plan.fleet.capacity import InstanceType


@pytest.fixture
def kind() -> Callable[..., InstanceType]:
    """Makes a type of instance that sustains given rates."""

    def make(
        system: str, usd: float, rates: Sequence[float], gpus: int = 1, watts: float = 500.0
    ) -> InstanceType:
        return InstanceType(
            system=system,
            gpus=gpus,
            layout=Layout(),
            formats=Formats(),
            usd_per_hour=usd,
            power_w=watts,
            rates=tuple(rates),
            in_flight=(1.0,) * len(rates),
        )

    return make
