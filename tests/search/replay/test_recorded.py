"""Recorded spaces: what a run table holds, by configuration number; what is refused."""

import numpy as np
import pandas as pd
import pytest
from toy_space import space_runs

from foretune.datasets import write_runs
from foretune.errors import RunTableError
from foretune.objective import Objective
from foretune.search.replay.recorded import read_spaces, recorded_spaces
from foretune.search.replay.replay import replay


def only(runs, objective=Objective.TIME):
    (recorded,) = recorded_spaces(runs, "toy", objective)
    return recorded


def test_everything_is_known_by_number():
    runs = space_runs()
    recorded = only(runs)
    assert len(recorded) == len(recorded.space) == len(recorded.values) == 60
    assert (recorded.kernel, dict(recorded.problem)) == ("toy", {"n": 100})
    for number in (0, 17, 59):
        found = recorded.measurements[number]
        assert found.config == recorded.space[number]
        assert found.time_ms == recorded.values[number] or not found.ok
    assert np.isinf(recorded.values).sum() == 3
    assert recorded.values.argmin() == recorded.space.index({"x": 3, "y": 2, "mode": "b"})
    assert recorded.optimum == pytest.approx(1.06)


def test_recorded_space_order_of_rows_does_not_matter():
    runs = space_runs()
    shuffled = runs.sample(frac=1, random_state=0)
    assert (only(shuffled).values == only(runs).values).all()


def test_how_many_are_as_good_as_the_best():
    runs = space_runs()
    recorded = only(runs)
    assert recorded.count_within(1.0) == 1
    share = recorded.optimum / recorded.values
    assert recorded.count_within(0.5) == (share >= 0.5).sum()


def test_recorded_space_newest_row_counts():
    runs = space_runs()
    runs["recorded_at"] = "2026-01-02T00:00:00+00:00"
    old = runs.assign(time_ms=0.001, recorded_at="2026-01-01T00:00:00+00:00")
    old["time_ms"] = old["time_ms"].where(old["status"] == "ok")
    both = pd.concat([runs, old], ignore_index=True)
    assert (only(both).values == only(runs).values).all()


def test_read_spaces_one_per_kernel_device_and_problem():
    other = space_runs("other", n=5).rename(columns={"config.x": "config.z"})
    tables = [space_runs(), space_runs(n=200), space_runs(device="Second GPU"), other]
    spaces = recorded_spaces(pd.concat(tables, ignore_index=True), "file")
    assert [s.name for s in spaces] == [
        "file (toy, Toy GPU, n=100)",
        "file (toy, Toy GPU, n=200)",
        "file (toy, Second GPU, n=100)",
        "file (other, Toy GPU, n=5)",
    ]
    assert [len(s) for s in spaces] == [60] * 4
    assert spaces[0].space.names == ["x", "y", "mode"]
    assert sorted(spaces[3].space.names) == ["mode", "y", "z"]


def test_read_spaces_file_names_its_only_space(tmp_path):
    runs = space_runs()
    write_runs(tmp_path / "toy__gpu.parquet", runs)
    (recorded,) = read_spaces(tmp_path / "toy__gpu.parquet")
    assert recorded.name == "toy__gpu"


def test_recorded_space_device_has_specs_of_rows_and_table():
    runs = space_runs(device="NVIDIA H200").assign(**{"device.power_limit_w": 500.0})
    device = only(runs).device
    assert (device.name, device.kind) == ("NVIDIA H200", "gpu")
    assert device.specs["power_limit_w"] == 500.0
    assert device.specs["memory_gbps"] > 1000
    assert only(space_runs()).device.kind == "gpu"
    assert only(space_runs().assign(**{"device.vector_bits": 256.0})).device.kind == "cpu"


def test_energy_is_searched_where_it_was_metered():
    runs = space_runs()
    watts = runs["config.x"] * 10.0
    metered = runs.assign(power_w=watts.where(runs["config.y"] > 0))
    recorded = only(metered, Objective.ENERGY)
    assert np.isinf(recorded.values).sum() == 15 + 3  # not metered, or failed
    assert recorded.optimum == pytest.approx((metered["time_ms"] * metered["power_w"]).min())
    with pytest.raises(RunTableError, match="none of 60 configurations ran with power_w"):
        only(runs, Objective.ENERGY)


def test_recorded_space_parameters_may_be_absent():
    runs = space_runs()
    runs["config.mode"] = runs["config.mode"].where(runs["config.x"] > runs["config.x"].min())
    recorded = only(runs)
    assert len(recorded.measurements) == len(recorded.space) < len(runs)
    assert sum("mode" not in config for config in recorded.space) > 0
    assert replay(recorded, "surrogate", budget=len(recorded), repeats=1).curves[0, -1] == 1


def test_recorded_space_of_failures_is_refused():
    runs = space_runs()
    failed = runs.assign(status="compile_error", time_ms=np.nan)
    with pytest.raises(RunTableError, match="none of 60 configurations ran: there is nothing to f"):
        only(failed)
    with pytest.raises(RunTableError, match="holds no rows"):
        only(runs.head(0))


def test_recorded_space_one_configuration_and_constant_times():
    runs = space_runs()
    assert len(only(runs.head(1))) == 1
    constant = runs[runs["status"] == "ok"].assign(time_ms=2.0)
    assert only(constant).count_within() == len(constant)


def test_whole_numbers_stay_whole_beside_gaps():
    other = space_runs("other").drop(columns="config.x")
    spaces = recorded_spaces(pd.concat([space_runs(), other], ignore_index=True), "file")
    assert spaces[0].space.parameters["x"] == (1, 2, 3, 4, 5)
    assert all(isinstance(v, int) for v in spaces[0].space.parameters["x"])


@pytest.mark.shared_data
def test_recorded_space_of_real_gpu(shared_data):
    (recorded,) = read_spaces(shared_data / "spaces" / "convolution_milo__MI250X.parquet")
    assert len(recorded) == 4362
    assert recorded.optimum == pytest.approx(0.6558459997)
    assert recorded.device.specs["memory_gbps"] > 1000
