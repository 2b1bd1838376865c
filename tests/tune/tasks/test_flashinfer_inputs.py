"""Random, stored and given arguments: `tune/tasks/flashinfer_inputs.py`."""

import pytest
from trace_sets import workload

torch = pytest.importorskip("torch")

from foretune.errors import MeasurementError
from foretune.tune.tasks.flashinfer_inputs import random_tensor
from foretune.tune.tasks.folder import read_task


def test_inputs_of_a_workload(trace_set):
    with read_task(trace_set.folder) as task:
        x, factor = task.inputs(seed=1, n=4)
        again, _ = task.inputs(seed=1, n=4)
        other, _ = task.inputs(seed=2, n=4)
    assert factor == 3.0
    assert x.shape == (4, 8)
    assert torch.equal(x, again)
    assert not (x == other).any()


def test_inputs_stored_ones_are_read(trace_set, stored_workload):
    safetensors = pytest.importorskip("safetensors.torch")
    file = trace_set.folder / "x.safetensors"
    safetensors.save_file({"a": torch.full((4, 8), 2.0)}, file)
    trace_set.write_workloads(stored_workload)

    with read_task(trace_set.folder) as task:
        x, _ = task.inputs(seed=1, n=4)
        assert file in task.files
    assert (x == 2.0).all()


def test_inputs_workloads_of_equal_sizes_are_told_apart(trace_set):
    other_factor = {"type": "scalar", "value": 5.0}
    trace_set.write_workloads(workload(4, "a"), workload(4, "b", factor=other_factor))
    with read_task(trace_set.folder) as task:
        factors = [task.inputs(seed=1, **problem)[1] for problem in task.problems]
    assert factors == [3.0, 5.0]


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [("bool", 1), ("int8", 128), ("int32", 1024), ("float8_e5m2", 2), ("bfloat16", 8)],
)
def test_random_tensor_stays_in_range(dtype, limit):
    tensor = random_tensor((16, 4), dtype)
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.shape == (16, 4)
    assert (tensor.float().abs() <= limit).all()


@pytest.mark.parametrize("dtype", ["float7", "add"])
def test_random_tensor_of_unknown_type_is_refused(dtype):
    with pytest.raises(MeasurementError, match=f"torch has no type {dtype}"):
        random_tensor((2,), dtype)
