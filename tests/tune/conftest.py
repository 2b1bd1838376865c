"""What the tests of tuning share."""

import pytest
from toy_kernel import DEVICE, MeteredRunner, Toy

from foretune.collect import plan_configurations
from foretune.datasets import from_measurements
from foretune.models import Predictor


@pytest.fixture(scope="session")
def metered_predictor():
    """A predictor of the toy kernel that has learned time and power."""
    kernel = Toy()
    runner = MeteredRunner()
    plan = plan_configurations(kernel, kernel.training_problems(5), 25)
    rows = [m for p, configs in plan.items() for m in runner.run(kernel, p, configs)]
    return Predictor().fit(from_measurements(rows, DEVICE))
