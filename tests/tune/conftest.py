"""What the tests of tuning share."""

import mlflow
import pytest
from toy_kernel import DEVICE, MeteredRunner, Toy

from foretune.collect import plan_configurations
from foretune.datasets import from_measurements
from foretune.models import Predictor


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """An empty MLflow database: making its tables takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "template.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def metered_predictor():
    """A predictor of the toy kernel that has learned time and power."""
    kernel, runner = Toy(), MeteredRunner()
    plan = plan_configurations(kernel, kernel.training_problems(5), 25)
    rows = [m for p, configs in plan.items() for m in runner.run(kernel, p, configs)]
    return Predictor().fit(from_measurements(rows, DEVICE))
