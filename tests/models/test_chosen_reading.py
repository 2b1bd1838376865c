"""Which reading of a table's names its runs support."""

import numpy as np
import pandas as pd
import pytest

from foretune.datasets.plain_tables import plain_runs
from foretune.errors import PredictorError, UnknownName
from foretune.features.readings import RenamedFamily
from foretune.models import Predictor


def table(seconds, n=120):
    """Return runs of a kernel whose sizes have the names of a matrix product's."""
    rng = np.random.default_rng(0)
    sizes = {name: 16 * rng.integers(1, 64, n) for name in ("rows", "cols", "inner")}
    time_ms = seconds(*sizes.values()) * rng.lognormal(0.0, 0.02, n)
    return plain_runs(pd.DataFrame({**sizes, "time_ms": time_ms}))


def product_ms(m, n, k):
    return 0.01 + 2.0 * m * n * k / 1e9 + 2.0 * (m * k + k * n + m * n) / 1e8


@pytest.fixture(scope="module")
def of_product():
    return Predictor(targets=("time_ms",)).fit(table(product_ms))


def test_a_product_is_found_by_the_names_of_its_sizes(of_product):
    family = of_product.features_.family
    assert isinstance(family, RenamedFamily)
    expected = "read as a matrix product: M = rows, N = cols, K = inner"
    assert str(family.reading) == expected
    assert of_product.declared_family is None


def test_a_reading_is_saved(of_product, tmp_path):
    of_product.save(tmp_path / "p")
    loaded = Predictor.load(tmp_path / "p")
    assert loaded.features_.family.reading == of_product.features_.family.reading
    asked = table(product_ms, n=20)
    pd.testing.assert_frame_equal(loaded.predict(asked), of_product.predict(asked))


def test_names_that_the_times_contradict_are_not_believed():
    # Time falls with the size: no roofline does that.
    runs = table(lambda m, n, k: 1e9 / (1.0 * m * n * k))
    assert Predictor(targets=("time_ms",)).fit(runs).features_.family is None


def test_a_reading_can_be_refused(tmp_path):
    refusing = Predictor(targets=("time_ms",), read_as="none").fit(table(product_ms))
    assert refusing.features_.family is None
    refusing.save(tmp_path / "p")
    assert Predictor.load(tmp_path / "p").read_as == "none"


def test_a_named_reading_is_taken_whatever_the_times_say():
    runs = table(lambda m, n, k: 1e9 / (1.0 * m * n * k))
    named = Predictor(targets=("time_ms",), read_as="gemm").fit(runs)
    assert named.features_.family.reading.template.family == "gemm"


def test_a_named_reading_needs_the_names_of_its_sizes():
    expected = r"cannot be read as an exchange .* message_bytes \(message_bytes\), devices"
    with pytest.raises(PredictorError, match=expected):
        Predictor(targets=("time_ms",), read_as="all_reduce").fit(table(product_ms))


def test_a_kernel_with_a_family_is_not_read_as_another():
    runs = table(product_ms).assign(kernel="gemm")
    runs = runs.rename(columns={"problem.rows": "problem.M", "problem.cols": "problem.N"})
    runs = runs.rename(columns={"problem.inner": "problem.K"})
    with pytest.raises(PredictorError, match="not read as norm: leave --read-as out"):
        Predictor(targets=("time_ms",), read_as="norm").fit(runs)


def test_a_kernel_called_like_a_family_is_read_as_it_under_other_names():
    named = Predictor(targets=("time_ms",)).fit(table(product_ms).assign(kernel="gemm"))
    assert named.features_.family.reading.template.family == "gemm"


def test_a_kernel_called_like_a_family_is_not_guessed_to_be_another():
    named = Predictor(targets=("time_ms",)).fit(table(product_ms).assign(kernel="moe"))
    assert named.features_.family is None


def test_an_unknown_reading_is_refused_by_name():
    with pytest.raises(UnknownName, match=r"unknown reading 'gem'.*did you mean 'gemm'"):
        Predictor(targets=("time_ms",), read_as="gem").fit(table(product_ms))
