"""Tables of known tools: which of their times counts is asked for, not taken."""

import pytest

from foretune.datasets import import_runs
from foretune.errors import UsageError

OPTUNA = (
    "number,value,datetime_start,datetime_complete,duration,params_N,state\n"
    "0,1.5,2025-01-01,2025-01-01,0 days 00:00:01,64,COMPLETE\n"
)
RAY = "training_iteration,time_this_iter_s,latency,config.N\n1,3.2,1.5,64\n"
YTOPT = "N,objective,elapsed_sec\n64,0.0015,1\n"
TRTEXEC = "name,timeMs,averageMs\nconv,150,1.5\n"
SPACE = "N,runtime_ms,feasible\n64,1.5,True\n128,100000,False\n"


def read(tmp_path, text, **mapping):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    return import_runs(path, "generic", kernel="k", device="d", mapping=mapping).runs


@pytest.mark.parametrize(
    ("text", "tool"),
    [(OPTUNA, "Optuna"), (RAY, "Ray Tune"), (YTOPT, "ytopt"), (TRTEXEC, "trtexec")],
    ids=["Optuna", "Ray Tune", "ytopt", "trtexec"],
)
def test_known_tool_without_a_mapping_is_named(tmp_path, text, tool):
    with pytest.raises(UsageError, match=rf"{tool}.*--map time_ms="):
        read(tmp_path, text, **{"problem.N": text.partition(",")[0]})


@pytest.mark.parametrize(
    ("text", "size", "time"),
    [
        (OPTUNA, "params_N", "value"),
        (RAY, "config.N", "latency"),
        (YTOPT, "N", "objective*1000"),
        (TRTEXEC, "name", "averageMs"),
    ],
    ids=["Optuna", "Ray Tune", "ytopt", "trtexec"],
)
def test_known_tool_with_a_mapping_is_read(tmp_path, text, size, time):
    runs = read(tmp_path, text, **{"problem.N": size, "time_ms": time})
    assert runs["time_ms"].tolist() == pytest.approx([1.5])


def test_infeasible_configuration_is_invalid(tmp_path):
    runs = read(tmp_path, SPACE, **{"problem.N": "N"})
    assert runs["status"].tolist() == ["ok", "invalid"]
    assert runs["time_ms"].isna().tolist() == [False, True]
