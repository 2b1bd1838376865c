"""Saved corrections and their intervals: `plan/serve/deployments/correction.py`."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from foretune.errors import OutputError, PredictorError
from foretune.plan import Formats, Layout, ModelDescription, Workload, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.correction import TARGETS, LatencyPredictor, log_metric
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.probability import T_QUANTILE_95, pairwise_better

SMALL = ModelDescription(
    "small", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, vocab=100, intermediate=128
)


@pytest.fixture(scope="module")
def trained():
    system = find_system("h100_sxm")
    deployments = [
        Deployment(SMALL, system, backend, Layout(tp), Formats(), Workload(isl, 64), float(c))
        for c in (1, 8, 64)
        for tp in (1, 2)
        for isl in (64, 512)
        for backend in ("vllm", "sglang")
    ]
    rows = analytic_times(deployments, StepTimerFactory(None))
    noise = np.exp(np.random.default_rng(0).normal(0, 0.1, (len(rows), 2)))
    measured = pd.DataFrame(
        {"tpot_ms": rows["decode"] * 1.5 * noise[:, 0], "ttft_ms": 30.0 * noise[:, 1]}
    )
    groups = pd.factorize(rows["layout"] + rows["use"])[0]
    return LatencyPredictor().fit(rows, measured, groups), rows


def test_correction_loaded_predicts_the_same(trained, tmp_path):
    correction, rows = trained
    path = tmp_path / "new" / "correction.json"
    correction.save(path)
    again = LatencyPredictor.load(path)
    strangers = rows.assign(model="other")
    for asked in (rows, strangers):
        pd.testing.assert_frame_equal(again.predict(asked), correction.predict(asked), rtol=1e-5)
    one, other = (pairwise_better(*log_metric(c, rows, "tpot_ms")) for c in (again, correction))
    assert one == pytest.approx(other, abs=1e-4)
    assert [p.name for p in path.parent.iterdir()] == ["correction.json"]
    json.loads(path.read_text(encoding="utf-8"))


def test_correction_covariances_match_intervals(trained):
    correction, rows = trained
    answer = correction.predict(rows)
    for target in TARGETS:
        deviation = np.sqrt(np.diag(correction.covariances(rows)[target]))
        half = np.log(answer[f"{target}_high"] / answer[target])
        assert half.to_numpy() == pytest.approx(T_QUANTILE_95 * deviation, rel=1e-2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("", "is not a latency correction"),
        ("[1]", "it is not a JSON object"),
        ("{}", "is not a latency correction"),
        ('{"processes": 3}', "damaged"),
    ],
)
def test_correction_damaged_file_is_refused(tmp_path, text, says):
    path = tmp_path / "correction.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(PredictorError, match=rf"{re.escape(str(path))}.*{says}") as caught:
        LatencyPredictor.load(path)
    assert "\n" not in str(caught.value)


def test_correction_unwritable_path_is_refused(trained, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot write the correction"):
        trained[0].save(tmp_path / "file" / "correction.json")
