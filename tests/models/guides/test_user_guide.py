"""Users' models: estimators, functions, MLflow and ONNX: `models/guides/user_guide.py`."""

import sys

import numpy as np
import pandas as pd
import pytest
import toy_models
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from toy_kernel import DEVICE
from toy_models import PROBLEM, SPACE

from foretune.errors import MissingExtra, PredictorError, TrackingError, UsageError
from foretune.models.guides.columns import select_columns
from foretune.models.guides.guide import make_guide
from foretune.models.guides.user_guide import DEFAULT_LOG_SPREAD
from foretune.models.saved.lookup import read_model
from foretune.objective import Limit, Objective
from foretune.problem import Problem
from foretune.search.prior import prior_from_predictor
from foretune.space import SearchSpace


def predict(model, space=SPACE, problem=PROBLEM, indices=None):
    return make_guide(model, DEVICE).predict_space(problem, space, indices)


def prior_of(model, **how):
    return prior_from_predictor(model, PROBLEM, SPACE, DEVICE, **how)


def table_of(space=SPACE, problem=PROBLEM):
    return pd.DataFrame([{**problem, **config} for config in space])


class TestEstimators:
    def test_pipeline_gets_its_columns_by_name(self):
        model = toy_models.pipeline()
        expected = model.predict(table_of()[list(model.feature_names_in_)])
        assert np.array_equal(predict(model)["time_ms"], expected)
        some = np.array([5, 3, 200])
        assert np.array_equal(predict(model, indices=some)["time_ms"], expected[some])

    def test_forest_gets_indicators_of_texts(self):
        model = toy_models.forest()
        assert list(model.feature_names_in_)[:2] == ["layout_row", "layout_col"]
        columns = pd.get_dummies(table_of())[list(model.feature_names_in_)]
        assert np.array_equal(predict(model)["time_ms"], model.predict(columns))

    def test_model_may_name_group_and_device(self):
        names = ["config.unroll", "device.cores", "problem.M", "config.layout_row"]
        seen = []

        class Model:
            feature_names_in_ = np.array(names)

            def predict(self, X):
                seen.append(X)
                return X["config.unroll"] + X["config.layout_row"]

        predict(Model())
        (X,) = seen
        assert list(X) == names
        assert set(X["device.cores"]) == {2.0}
        assert set(X["problem.M"]) == {512}

    def test_name_in_problem_and_configuration_needs_its_group(self):
        space = SearchSpace({"n": (1, 2)})
        problem = Problem(n=3)
        table = predict(lambda t: t["config.n"] + t["problem.n"], space, problem)
        assert list(table["time_ms"]) == [4, 5]
        with pytest.raises(PredictorError, match="KeyError"):
            predict(lambda t: t["n"], space, problem)

    def test_model_without_names_gets_problem_first(self):
        space = SearchSpace({"b": (1, 2), "a": (3, 5)})
        rng = np.random.default_rng(0)
        model = LinearRegression().fit(X := rng.random((20, 3)) * 9, X @ [1, 10, 100])
        assert np.allclose(predict(model, space, Problem(M=7))["time_ms"], [317, 517, 327, 527])

    def test_model_without_names_of_other_width_is_refused(self):
        model = LinearRegression().fit(np.ones((4, 2)), np.ones(4))
        with pytest.raises(PredictorError, match=r"2 columns .* there are 5 \(M, block_m, .*frame"):
            predict(model)

    def test_model_with_interval_gives_the_spread(self):
        model = toy_models.regressor()
        table = predict(model)
        X = table_of()
        assert np.array_equal(table["time_ms"], model.predict(X))
        interval = table[["time_ms_low", "time_ms_high"]]
        assert np.array_equal(interval, model.predict_interval(X))
        spread = np.median(np.log(interval["time_ms_high"] / interval["time_ms_low"])) / 3.29
        assert prior_of(model).log_spread == pytest.approx(spread)

    def test_model_without_interval_has_default_spread(self):
        table = predict(toy_models.by_table)
        prior = prior_of(toy_models.by_table)
        assert prior.log_spread == pytest.approx(DEFAULT_LOG_SPREAD)
        assert prior.foreign  # so that measurements correct it
        ratio = table["time_ms_high"] / table["time_ms"]
        assert np.allclose(ratio, np.exp(1.645 * DEFAULT_LOG_SPREAD))
        assert set(table["p_valid"]) == {1.0}


class TestFunctions:
    def test_function_of_table_and_of_configuration_predict_the_same(self):
        by_table = predict(lambda rows: rows["block_m"] * 1.0 + rows["unroll"])
        by_config = predict(lambda config: config["block_m"] * 1.0 + config["unroll"])
        pd.testing.assert_frame_equal(by_table, by_config)

    def test_function_may_return_columns(self):
        full = {"time_ms": 2.0, "time_ms_low": 1.0, "time_ms_high": 4.0, "p_valid": 0.5}
        table = predict(lambda config: {**full, "power_w": config["unroll"], "more": 1})
        assert table.iloc[0].to_dict() | full == table.iloc[0].to_dict()
        assert set(table["power_w"]) == {1.0, 2.0, 4.0, 8.0}

    def test_function_nan_or_infinity_is_not_expected_to_run(self):
        def guess(config):
            return {1: np.nan, 2: np.inf}.get(config["unroll"], config["block_m"])

        prior = prior_of(guess)
        fails = np.array([c["unroll"] in (1, 2) for c in SPACE])
        assert set(prior.p_valid[fails]) == {0.0}
        assert set(prior.p_valid[~fails]) == {1.0}
        assert np.allclose(prior.log_mean[fails], np.log(256))

    def test_object_with_predict_space_is_accepted(self):
        class Own:
            def predict_space(self, problem, space, device, indices=None):
                return pd.DataFrame({"time_ms": toy_models.TIMES, "p_valid": 0.9})

        assert np.array_equal(predict(Own())["time_ms"], toy_models.TIMES)

    def test_limit_uses_the_interval(self):
        prior = prior_of(lambda rows: rows["block_m"] * 1.0, limits=[Limit("time_ms", 32.0)])
        probability = dict(zip((c["block_m"] for c in SPACE), prior.p_valid, strict=True))
        assert probability[32] == pytest.approx(0.5)
        assert probability[8] > 0.99
        assert probability[256] < 0.01

    def test_limit_excludes_what_is_not_expected_to_run(self):
        def guess(config):
            return np.nan if config["unroll"] == 1 else config["block_m"]

        prior = prior_of(guess, limits=[Limit("time_ms", 1e9)])
        assert [p > 0 for p in prior.p_valid] == [c["unroll"] > 1 for c in SPACE]

    def test_function_of_configuration_by_other_name_gets_a_hint(self):
        with pytest.raises(
            PredictorError, match=r"Series is ambiguous.*: name its first .* config"
        ):
            predict(lambda c: 2.0 if c["unroll"] > 1 else 1.0)


class TestRefusals:
    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            (lambda rows: rows["blok"], "KeyError: 'blok'"),
            (lambda rows: np.ones(3), "time_ms has shape (3,) for 264 configurations"),
            (lambda rows: 1.0, "time_ms has shape ()"),
            (lambda rows: np.ones((len(rows), 2)), "shape (264, 2)"),
            (lambda rows: 1.0 - rows["unroll"], "time_ms is -7: return numbers above 0"),
            (lambda rows: ["slow"] * len(rows), "could not convert string"),
            (lambda rows: {"power_w": np.ones(len(rows))}, "returns power_w, and no time_ms"),
            (lambda config: 1 / 0, "ZeroDivisionError: division by zero"),
            (LinearRegression(), "NotFittedError"),
        ],
    )
    def test_failing_model_is_refused_in_one_line(self, model, reason):
        with pytest.raises(PredictorError, match="cannot predict this space") as error:
            prior_of(model)
        assert reason in str(error.value)
        assert "\n" not in str(error.value)

    def test_missing_columns_are_named(self):
        table, times = toy_models.training_rows()
        X = table[["block_m"]].assign(stages=1, block_m_log=1.0, threads_x=1)
        with pytest.raises(
            PredictorError, match="no stages, threads_x, block_m_log among M, block"
        ):
            prior_of(RandomForestRegressor(2).fit(X, times))

    def test_indicators_of_unknown_values_only_are_refused(self):
        with pytest.raises(PredictorError, match="no layout_tiled among"):
            select_columns(table_of(), ["block_m", "layout_tiled"])
        columns = select_columns(table_of(), ["layout_tiled", "layout_row"])
        assert not columns["layout_tiled"].any()

    def test_model_that_expects_no_run_is_refused(self):
        with pytest.raises(PredictorError, match="no configuration runs"):
            prior_of(lambda rows: np.full(len(rows), np.nan))

    def test_model_that_ranks_nothing_is_refused(self):
        with pytest.raises(PredictorError, match="predicts the same for all 264 configurations"):
            prior_of(lambda rows: np.ones(len(rows)))

    def test_power_is_needed_for_energy_only(self):
        assert prior_of(toy_models.by_table, objective=Objective.TIME)
        with pytest.raises(PredictorError, match="has not learned power"):
            prior_of(toy_models.by_table, objective=Objective.ENERGY)
        prior = prior_of(
            lambda rows: {"time_ms": rows["block_m"], "power_w": 2.0 * rows["unroll"]},
            objective=Objective.ENERGY,
        )
        energy = [c["block_m"] * 2.0 * c["unroll"] for c in SPACE]
        assert np.allclose(prior.log_mean, np.log(energy))

    @pytest.mark.parametrize("model", [3, object(), None])
    def test_make_guide_other_object_is_refused(self, model):
        with pytest.raises(UsageError, match="estimator or a function"):
            make_guide(model)

    def test_make_guide_class_is_refused(self):
        with pytest.raises(UsageError, match="LinearRegression is a class: give a fitted object"):
            make_guide(LinearRegression)


class TestNames:
    @pytest.fixture
    def file(self, tmp_path, monkeypatch):
        (tmp_path / "own_models.py").write_text(
            "import toy_models\nmodel = toy_models.pipeline()\n"
            "def guess(config):\n    return config['block_m']\nfive = 5\n"
        )
        monkeypatch.setattr(sys, "path", [*sys.path])
        yield tmp_path / "own_models.py"
        sys.modules.pop("own_models", None)

    def test_read_model_from_file(self, file):
        for name in ("model", "guess"):
            guide = read_model(f"{file}:{name}")
            assert str(guide) == f"{file}:{name}"
            assert len(guide.predict_space(PROBLEM, SPACE, DEVICE)) == len(SPACE)

    def test_read_model_unknown_name_in_file_is_refused(self, file):
        for name, reason in {":guss": "did you mean 'guess'", "": "write .*:NAME"}.items():
            with pytest.raises(UsageError, match=reason):
                read_model(f"{file}{name}")
        with pytest.raises(UsageError, match="predictor is 5: give"):
            read_model(f"{file}:five")

    @pytest.mark.parametrize("name", ["forest.joblib", "forest.pkl", "some/forest.pickle"])
    def test_read_model_pickle_is_refused(self, name):
        with pytest.raises(UsageError, match=r"would run code when it is loaded: .*FILE\.py:model"):
            read_model(name)

    def test_read_model_onnx_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(MissingExtra, match=r"pip install '.\[onnx\]'"):
            read_model("model.onnx")


class TestMlflow:
    @pytest.fixture
    def mlflow(self, tmp_path, template, monkeypatch):
        import mlflow

        monkeypatch.chdir(tmp_path)
        (tmp_path / "mlflow.db").write_bytes(template.read_bytes())
        uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        mlflow.set_tracking_uri(uri)
        return mlflow

    def log(self, mlflow, model, **how):
        log_model = mlflow.sklearn.log_model if hasattr(model, "fit") else mlflow.pyfunc.log_model
        key = "sk_model" if hasattr(model, "fit") else "python_model"
        with mlflow.start_run() as run:
            log_model(
                **{key: model},
                name="predictor",
                registered_model_name="mine",
                pip_requirements=["scikit-learn"],
                **how,
            )
        return run.info.run_id

    def test_mlflow_estimator_with_signature(self, mlflow):
        from mlflow.models import infer_signature

        model = toy_models.forest()
        columns = pd.get_dummies(table_of())[list(model.feature_names_in_)]
        own = columns.astype({"M": float})  # as whoever logs it likes
        run = self.log(mlflow, model, signature=infer_signature(own), serialization_format="pickle")
        for name in (f"runs:/{run}", "models:/mine/1"):
            guide = read_model(name)
            table = guide.predict_space(PROBLEM, SPACE, DEVICE)
            assert np.array_equal(table["time_ms"], model.predict(columns))

    def test_mlflow_pipeline_without_signature(self, mlflow):
        model = toy_models.pipeline()
        self.log(mlflow, model, serialization_format="pickle")
        table = read_model("models:/mine/1").predict_space(PROBLEM, SPACE, DEVICE)
        expected = model.predict(table_of()[list(model.feature_names_in_)])
        assert np.array_equal(table["time_ms"], expected)

    def test_mlflow_function_without_signature(self, mlflow, monkeypatch):
        validation = "mlflow.pyfunc.utils.data_validation"
        monkeypatch.setattr(f"{validation}.color_warning", lambda *_, **__: None)
        self.log(mlflow, lambda model_input: model_input["block_m"] * 1.0)
        table = read_model("models:/mine/1").predict_space(PROBLEM, SPACE, DEVICE)
        assert list(table["time_ms"]) == [c["block_m"] for c in SPACE]

    @pytest.mark.usefixtures("mlflow")
    def test_mlflow_unknown_model_is_refused(self):
        with pytest.raises(TrackingError, match="has no models:/mine/7"):
            read_model("models:/mine/7")


class TestOnnx:
    @pytest.fixture
    def convert(self, tmp_path):
        pytest.importorskip("onnxruntime")
        skl2onnx = pytest.importorskip("skl2onnx")

        def save(model, types):
            path = tmp_path / "model.onnx"
            converted = skl2onnx.to_onnx(model, initial_types=types)
            path.write_bytes(converted.SerializeToString())
            return read_model(path)

        return save

    def test_onnx_one_input_per_column(self, convert):
        from skl2onnx.common.data_types import FloatTensorType, StringTensorType

        model = toy_models.pipeline()
        text = StringTensorType([None, 1])
        number = FloatTensorType([None, 1])
        types = [(n, text if n == "layout" else number) for n in model.feature_names_in_]
        table = convert(model, types).predict_space(PROBLEM, SPACE, DEVICE)
        expected = model.predict(table_of()[list(model.feature_names_in_)])
        assert np.allclose(table["time_ms"], expected, rtol=1e-4)

    def test_onnx_one_matrix(self, convert):
        from skl2onnx.common.data_types import FloatTensorType

        space = SearchSpace({"b": (1, 2), "a": (3, 5)})
        model = LinearRegression().fit(X := np.random.default_rng(0).random((20, 3)), X.sum(1))
        guide = convert(model, [("X", FloatTensorType([None, 3]))])
        table = guide.predict_space(Problem(M=7), space, DEVICE)
        assert np.allclose(table["time_ms"], [11, 13, 12, 14], rtol=1e-5)
        with pytest.raises(PredictorError, match="takes 3 columns without names"):
            guide.predict_space(PROBLEM, SPACE, DEVICE)

    def test_onnx_damaged_file_is_refused(self, tmp_path):
        pytest.importorskip("onnxruntime")
        (tmp_path / "model.onnx").write_text("no model")
        with pytest.raises(PredictorError, match="ONNX cannot read"):
            read_model(tmp_path / "model.onnx")
