"""Predictors predict what they predicted before, saved ones and trained ones.

The folder `saved_predictors` holds one small predictor of each kind:

- ``dense``: many problems, a third of them measured on a second device. Nearly every row has
  neighbors, so the experts are corrected interpolation and interpolation, weighted by row.
- ``scattered``: many problems without neighbors. A Gaussian process is the second expert.
- ``few``: few problems. Convex weights, an interval by a rule, time and power, and a correction
  for a second device.

``dense`` and ``few`` exist with boosted trees and with a random forest.

`saved_predictions.json` holds what they predict for rows inside and outside the training range, on
known devices and on a new one. With the libraries and the BLAS code that recorded them, predictions
must be equal to the last bit. Elsewhere saved predictors must agree in ten digits, and training is
not compared: its optimizer and the splits of trees amplify differences in the last bit.

A change that is meant to predict differently writes both again and prints how far they moved::

    python tests/golden/test_saved_predictors.py --write
"""

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy
import sklearn
import xgboost
from threadpoolctl import threadpool_limits

import foretune
from foretune.models import Predictor

Columns = dict[str, list[float]]

FOLDERS = Path(__file__).with_name("saved_predictors")
PREDICTIONS = Path(__file__).with_name("saved_predictions.json")

OTHER_SUMS = 1e-10
"""Relative difference allowed in a saved predictor where BLAS adds in another order."""

REGRESSORS = {
    "xgboost": {"rounds": 9, "depth": 4, "rate": 0.3},
    "random_forest": {"trees": 3, "min_leaf_rows": 4},
}
DEVICES = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H200")
SPECS = ("cores", "fp32_gflops", "memory_gbps", "power_limit_w")


def matrix_products(
    sizes: np.ndarray, device: str = DEVICES[0], tiles: tuple[int, ...] = (64, 128)
) -> pd.DataFrame:
    """Return runs of products of these sizes (rows M, N, K), each with every tile."""
    sizes = np.repeat(sizes, len(tiles), axis=0)
    tile = np.resize(np.array(tiles, dtype=float), len(sizes))
    described = foretune.find_device(device)
    M, N, K = sizes.T
    waves = np.ceil(np.ceil(M / tile) * np.ceil(N / tile) / described.specs["cores"])
    step_us = tile**2 / 4e4 + tile / 3e2
    noise = np.exp(0.01 * np.random.default_rng(len(sizes)).standard_normal(len(sizes)))
    bank_conflicts = np.where((N / 64) % 4 == 0, 1.6, 1.0)
    time_ms = (0.004 + 1e-3 * waves * (K / 32) * step_us) * bank_conflicts * noise
    busy = (M * N * K) / (M * N * K + 2.0**28)
    specs = {f"device.{name}": described.specs[name] for name in SPECS}
    return pd.DataFrame(
        {"problem.M": M, "problem.N": N, "problem.K": K, "config.tile": tile}
    ).assign(
        kernel="gemm",
        device=described.name,
        status="ok",
        time_ms=np.round(time_ms, 5),
        power_w=np.round(described.specs["power_limit_w"] * (0.2 + 0.7 * busy) / noise, 1),
        **specs,
        **{"config.format": "fp16"},
    )


def random_sizes(count: int, seed: int) -> np.ndarray:
    return 64.0 * np.random.default_rng(seed).integers(2, 65, (count, 3))


def grid_sizes() -> np.ndarray:
    edges = 2.0 ** np.arange(7, 12)
    return np.stack(np.meshgrid(edges, edges, edges[:4], indexing="ij"), axis=-1).reshape(-1, 3)


def train_dense(model: str) -> Predictor:
    sizes = grid_sizes()
    runs = pd.concat([matrix_products(sizes), matrix_products(sizes[::3], DEVICES[1])])
    return Predictor(model, parameters=REGRESSORS[model]).fit(runs.drop(columns="power_w"))


def train_scattered(model: str) -> Predictor:
    runs = matrix_products(random_sizes(60, seed=1)).drop(columns="power_w")
    return Predictor(model, parameters=REGRESSORS[model]).fit(runs)


def train_few(model: str) -> Predictor:
    predictor = Predictor(model, parameters=REGRESSORS[model])
    predictor.fit(matrix_products(random_sizes(8, seed=2), tiles=(32, 64, 96, 128, 192, 256)))
    other_device = matrix_products(random_sizes(8, seed=3), DEVICES[1])
    return predictor.calibrate(other_device)


TRAINERS = {"dense": train_dense, "scattered": train_scattered, "few": train_few}
NAMES = [
    "dense-xgboost",
    "dense-random_forest",
    "scattered-xgboost",
    "few-xgboost",
    "few-random_forest",
]


def rows_to_predict() -> pd.DataFrame:
    """Return rows inside and outside the training range, on each device."""
    inside = np.vstack([grid_sizes()[1::25], random_sizes(3, seed=4)])
    outside = np.array([[16.0, 8192.0, 256.0], [65536.0, 256.0, 8192.0]])
    sizes = np.vstack([inside, outside])
    rows = pd.concat([matrix_products(sizes, device) for device in DEVICES], ignore_index=True)
    return rows.drop(columns=["time_ms", "power_w", "status"])


def train(name: str) -> Predictor:
    tables, model = name.split("-")
    return TRAINERS[tables](model)


def predictions_of(predictor: Predictor) -> Columns:
    return {name: values.tolist() for name, values in predictor.predict(rows_to_predict()).items()}


def rows_to_measure(predictor: Predictor) -> list[int]:
    """Return the numbers of the rows that would be measured to calibrate the predictor."""
    rows = rows_to_predict()
    keys = ["device", "problem.M", "problem.N", "problem.K", "config.tile"]
    numbers = {tuple(row): number for number, row in enumerate(rows[keys].to_numpy().tolist())}
    chosen = predictor.choose(6, rows)
    return [numbers[tuple(row)] for row in chosen[keys].to_numpy().tolist()]


def libraries_and_blas() -> str:
    """Return what decides about last bits: versions, and a hash of some results of BLAS."""
    libraries = (np, scipy, sklearn, xgboost)
    versions = [f"{library.__name__} {library.__version__}" for library in libraries]
    X = np.random.default_rng(0).standard_normal((150, 40))
    gram = X @ X.T + np.eye(150)
    results = [gram, np.linalg.cholesky(gram), np.linalg.solve(gram, X), np.exp(X), np.cbrt(X)]
    digest = hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()
    return ", ".join([*versions, digest[:16]])


def check_equal(predicted: Columns, recorded: Columns, rtol: float = 0.0) -> None:
    assert list(predicted) == list(recorded)
    for column, values in recorded.items():
        np.testing.assert_allclose(predicted[column], values, rtol=rtol, err_msg=column)


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(PREDICTIONS.read_text("utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_saved_predictor_predicts_as_before(name, recorded):
    same_libraries = recorded["libraries"] == libraries_and_blas()

    predictor = Predictor.load(FOLDERS / name)

    rtol = 0.0 if same_libraries else OTHER_SUMS
    check_equal(predictions_of(predictor), recorded["predictions"][name], rtol)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("all_trees")
def test_trained_predictor_predicts_as_before(name, recorded):
    if recorded["libraries"] != libraries_and_blas():
        pytest.skip(f"recorded with other libraries or BLAS code: {recorded['libraries']}")

    predictor = train(name)

    check_equal(predictions_of(predictor), recorded["predictions"][name])
    assert rows_to_measure(predictor) == recorded["rows_to_measure"][name]


@pytest.mark.parametrize("name", NAMES)
def test_saved_predictor_is_saved_as_before(name, tmp_path):
    Predictor.load(FOLDERS / name).save(tmp_path / name)

    files_before = {path.relative_to(FOLDERS / name) for path in (FOLDERS / name).rglob("*.*")}
    files_now = {path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*.*")}
    assert files_now == files_before
    for file in files_before:
        if file.suffix == ".json" and file.name != "predictor.json":  # it names versions
            card_before = json.loads((FOLDERS / name / file).read_text("utf-8"))
            assert json.loads((tmp_path / name / file).read_text("utf-8")) == card_before


def write() -> None:
    """Write predictors and predictions of this tree, and print how far they moved."""
    before = json.loads(PREDICTIONS.read_text("utf-8"))["predictions"]
    shutil.rmtree(FOLDERS)
    FOLDERS.mkdir()
    predictions = {}
    chosen = {}
    for name in NAMES:
        predictor = train(name)
        predictor.save(FOLDERS / name)
        predictions[name] = predictions_of(predictor)
        chosen[name] = rows_to_measure(predictor)
        for column, values in before.get(name, {}).items():
            moved = np.abs(np.log1p(values) - np.log1p(predictions[name][column])).max()
            print(f"{name}: {column} moved by up to {moved:.2g}")
    record = {
        "libraries": libraries_and_blas(),
        "rows_to_measure": chosen,
        "predictions": predictions,
    }
    text = re.sub(r",\n(?=[-\d])", ", ", json.dumps(record, indent=0))  # a column a line
    PREDICTIONS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    with threadpool_limits(1):  # as in tests: with more threads, BLAS adds in another order
        write()
