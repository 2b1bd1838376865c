"""Predictors that come with Foretune: which fits here, and whether they are as good as they say."""

import dataclasses
import json
import warnings

import numpy as np
import pytest

from foretune.collect import InProcessRunner
from foretune.datasets import card, load
from foretune.device import Device
from foretune.errors import ForetuneWarning, PredictorError, RunTableError
from foretune.models import Predictor
from foretune.models import find_pretrained as find_guide
from foretune.models.guides.request import PredictorRequest
from foretune.models.saved import pretrained as shipped
from foretune.models.saved.pretrained import PRETRAINED_CARD, NotShipped, Pretrained, read_cards
from foretune.models.splits import task_numbers
from foretune.models.validation.metrics import score
from foretune.objective import Objective
from foretune.registry import get_kernel
from foretune.space import SearchSpace
from foretune.tune.job import TuningJob
from foretune.tune.store.cache import MeasurementCache

MOST_BYTES = 10e6
SOURCE = get_kernel("matmul").source_hash


def write_card(of_it, root):
    (of_it.folder(root) / PRETRAINED_CARD).write_text(json.dumps(dataclasses.asdict(of_it)))


@pytest.fixture(scope="module")
def saved(predictor, toy_device, tmp_path_factory):
    """A folder of shipped predictors with one of the toy runs."""
    root = tmp_path_factory.mktemp("shipped")
    of_it = Pretrained(
        "matmul", SOURCE, toy_device.name, toy_device.architecture, toy_device.specs, "toy"
    )
    of_it.folder(root).parent.mkdir(parents=True)
    predictor.save(of_it.folder(root))
    write_card(of_it, root)
    return root


@pytest.fixture
def root(saved, tmp_path, monkeypatch):
    """A copy of it that a test may damage, found as if it came with Foretune."""
    import shutil

    copy = tmp_path / "shipped"
    shutil.copytree(saved, copy)
    monkeypatch.setattr(shipped, "SHIPPED", copy)
    return copy


def find_pretrained(kernel, source, device, needs_power=False):
    return find_guide(PredictorRequest(kernel, source, device, needs_power)).predictor


class Spoken:
    """Progress that keeps what it is told."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.mark.usefixtures("root")
class TestWhichFits:
    def test_find_pretrained_same_code_and_device(self, toy_device, runs, predictor):
        found = find_pretrained("matmul", SOURCE, toy_device)
        assert found.predict(runs).equals(predictor.predict(runs))

    def test_find_pretrained_with_power(self, toy_device):
        assert find_pretrained("matmul", SOURCE, toy_device, needs_power=True)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"name": "Other CPU"}, "toy was measured on Toy CPU (toy), this is Other CPU (toy)"),
            ({"architecture": "toy+wide"}, "this is Toy CPU (toy+wide)"),
            ({"architecture": ""}, "this is Toy CPU"),
            ({"specs": {"cores": 8.0}}, "toy is for 4 cores, this device has 8"),
        ],
    )
    def test_find_pretrained_other_device_has_mismatch(self, toy_device, change, reason):
        device = dataclasses.replace(toy_device, **change)
        guide = find_guide(PredictorRequest("matmul", SOURCE, device))
        assert reason in guide.mismatch
        assert not guide.has_valid_interval

    def test_measured_rates_may_differ_and_unknown_specs_too(self, toy_device):
        specs = {"cores": 4.0, "fp32_gflops": 190.0, "l2_kib": 512.0}
        device = dataclasses.replace(toy_device, specs=specs)
        assert not find_guide(PredictorRequest("matmul", SOURCE, device)).mismatch

    def test_find_pretrained_other_code_has_mismatch(self, toy_device):
        guide = find_guide(PredictorRequest("matmul", "0" * 16, toy_device))
        assert guide.mismatch == "toy was measured with other code of matmul"

    def test_find_pretrained_other_code_and_device_is_refused(self, toy_device):
        """Nothing but the name is the same, e.g. of a decorated function that is called matmul."""
        device = dataclasses.replace(toy_device, name="Other GPU")
        with pytest.raises(NotShipped, match="toy was measured with other code, on Toy CPU"):
            find_guide(PredictorRequest("matmul", "0" * 16, device))

    def test_find_pretrained_takes_most_similar(self, toy_device, root, predictor, runs):
        """Of two it is the one of the same device, though it comes later in the alphabet."""
        other = Pretrained("matmul", SOURCE, "Other CPU", "toy", toy_device.specs, "another")
        predictor.save(other.folder(root))
        write_card(other, root)
        assert not find_guide(PredictorRequest("matmul", SOURCE, toy_device)).mismatch
        sibling = dataclasses.replace(toy_device, specs={**toy_device.specs, "l1_kib": 48.0})
        assert "another" not in find_guide(PredictorRequest("matmul", SOURCE, sibling)).mismatch

    @pytest.mark.parametrize("kernel", ["softmax", "*", "../shipped/matmul", ""])
    def test_another_kernel_is_refused(self, toy_device, kernel):
        with pytest.raises(NotShipped, match="there is none for this kernel"):
            find_pretrained(kernel, SOURCE, toy_device)

    def test_find_pretrained_without_target_is_refused(self, toy_device, root, runs):
        folder = root / "matmul" / "toy"
        text = (folder / "card.json").read_text()
        Predictor(targets=("time_ms",)).fit(runs).save(folder)
        (folder / "card.json").write_text(text)
        with pytest.raises(NotShipped, match="toy has no power_w"):
            find_pretrained("matmul", SOURCE, toy_device, needs_power=True)


class TestDamage:
    @pytest.mark.parametrize("text", ["{", "[]", '{"kernel": "matmul"}'])
    def test_find_pretrained_damaged_card_is_refused(self, root, toy_device, text):
        (root / "matmul" / "toy" / "card.json").write_text(text)
        with pytest.raises(PredictorError, match=r"card\.json is damaged"):
            find_pretrained("matmul", SOURCE, toy_device)

    def test_find_pretrained_card_in_wrong_folder_is_refused(self, root, toy_device):
        path = root / "matmul" / "toy" / "card.json"
        path.write_text(path.read_text().replace('"matmul"', '"softmax"'))
        with pytest.raises(PredictorError, match="it is in the wrong folder"):
            find_pretrained("matmul", SOURCE, toy_device)

    def test_find_pretrained_damaged_predictor_is_refused(self, root, toy_device):
        (root / "matmul" / "toy" / "runs.parquet").write_bytes(b"nothing")
        with pytest.raises(RunTableError, match=r"runs\.parquet is not a readable Parquet file"):
            find_pretrained("matmul", SOURCE, toy_device)

    def test_find_pretrained_other_version_is_refused(self, root, toy_device):
        path = root / "matmul" / "toy" / "predictor.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "features_version": -1}))
        with pytest.raises(PredictorError, match="written by another version") as error:
            find_pretrained("matmul", SOURCE, toy_device)
        assert not isinstance(error.value, NotShipped)


class TestAsPrior:
    @pytest.fixture(autouse=True)
    def _metered(self, monkeypatch):
        monkeypatch.setattr("foretune.tune.job.find_meter", lambda kind, index: object())

    def find(self, device, predictor="auto", objective=Objective.TIME):
        told = Spoken()
        kernel = get_kernel("matmul")
        record = MeasurementCache.for_kernel(kernel, device, store=False)
        runner = InProcessRunner(device)
        session = TuningJob(kernel, runner, record, (objective,), progress=told)
        return session.find_predictor(predictor), told.said

    @pytest.mark.usefixtures("root")
    def test_auto_takes_the_one_that_fits(self, toy_device, predictor):
        found, said = self.find(toy_device, objective=Objective.ENERGY)
        assert found.predictor.training_ == predictor.training_
        rows = len(predictor.runs_)
        assert said == [f"prior: shipped predictor, trained on {rows} runs of Toy CPU"]

    @pytest.mark.usefixtures("root")
    def test_auto_takes_one_of_another_device_and_says_so(self):
        device = Device("Other CPU", "cpu")
        found, said = self.find(device)
        assert found.mismatch
        assert not found.has_valid_interval
        assert said[1].startswith("measurements check and correct the predictor: toy")
        assert said[1].endswith("this is Other CPU")

    def test_auto_warns_of_damage_and_does_without(self, root, toy_device):
        (root / "matmul" / "toy" / "predictor.json").write_text("{")
        with pytest.warns(ForetuneWarning, match="the shipped predictor is not used: .* holds no"):
            found, said = self.find(toy_device)
        assert (found, said) == (None, [])

    @pytest.mark.usefixtures("root")
    def test_nothing_and_a_given_one_stay_what_they_are(self, toy_device, predictor):
        assert self.find(toy_device, None) == (None, [])
        assert self.find(toy_device, "none") == (None, [])
        found, said = self.find(toy_device, predictor)
        assert (found.predictor, found.mismatch, said) == (predictor, "", [])


CARDS = list(read_cards("*"))


@pytest.fixture(params=CARDS, ids=lambda c: f"{c.kernel} on {c.table}")
def of_it(request):
    if request.param.kernel.startswith("triton_"):
        pytest.importorskip("torch")
        pytest.importorskip("triton")
    return request.param


def test_shipped_predictors_are_small():
    assert CARDS
    files = [p for p in shipped.SHIPPED.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) <= MOST_BYTES


def test_shipped_predictor_is_of_a_shipped_table(of_it):
    table = card(of_it.table)
    assert table.kernels[of_it.kernel] == of_it.source
    assert (table.device, table.architecture) == (of_it.device, of_it.architecture)
    assert table.specs == of_it.specs
    assert table.provisional == of_it.provisional


def device_of(of_it):
    kind = get_kernel(of_it.kernel).device_kind
    return Device(of_it.device, kind, of_it.architecture, of_it.specs)


def test_shipped_predictor_is_found_on_its_device(of_it):
    kernel = get_kernel(of_it.kernel)
    assert kernel.source_hash == of_it.source, f"measure {of_it.table} again"
    device = device_of(of_it)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = find_pretrained(of_it.kernel, of_it.source, device)
    problem = kernel.training_problems(1, seed=99)[0]
    predicted = found.predict_space(problem, kernel.space(problem), device, np.arange(50))
    assert (predicted["time_ms"] > 0).all()
    assert np.isfinite(predicted["time_ms"]).all()


def test_shipped_predictor_has_mismatch_on_other_device(of_it):
    another = dataclasses.replace(device_of(of_it), name="Another Device")
    guide = find_guide(PredictorRequest(of_it.kernel, of_it.source, another))
    assert f"was measured on {of_it.device}" in guide.mismatch
    assert not guide.has_valid_interval


def test_shipped_predictor_guides_search_for_time(of_it, monkeypatch):
    """One that has not learned power does not begin a search for the least energy."""
    monkeypatch.setattr("foretune.tune.job.find_meter", lambda kind, index: object())
    told = Spoken()
    kernel = get_kernel(of_it.kernel)
    device = device_of(of_it)
    record = MeasurementCache.for_kernel(kernel, device, store=False)
    problem = kernel.training_problems(1, seed=99)[0]

    def job(objective):
        return TuningJob(kernel, InProcessRunner(device), record, (objective,), progress=told)

    timed = job(Objective.TIME)
    guide = timed.find_predictor("auto")
    some = kernel.space(problem).sample(200, np.random.default_rng(0))
    space = SearchSpace.from_configs(some)
    assert len(timed.prior(problem, space, guide, Objective.TIME).log_mean) == len(space)
    assert "power_w" not in guide.predictor.targets_
    assert job(Objective.ENERGY).find_predictor("auto") is None
    assert told.said[-1].endswith(f"{of_it.table} has no power_w")


def test_shipped_predictor_beats_baselines_on_held_out_problems(of_it):
    stated = of_it.held_out
    others = [name for name in stated if " of " in name]
    assert len(others) >= 6
    for name in others:
        assert stated[name.partition(" of ")[0]] < stated[name]


def test_shipped_predictor_errors_are_as_stated(of_it):
    """A predictor of some of the rows errs on other problems about as much as the card says."""
    runs = load(of_it.table)
    runs = runs[(runs["kernel"] == of_it.kernel) & (runs["role"] != "finalist")]
    runs = runs.dropna(axis=1, how="all").drop(columns="time_ms_samples")
    fourth = task_numbers(runs) % 4 == 0
    known = runs[~fourth]
    unseen = runs[fourth]
    unseen = unseen[(unseen["status"] == "ok") & (unseen["counter.repeat"] == 0)]
    few = known.sample(min(len(known), 400), random_state=0)
    predictor = Predictor(targets=("time_ms",)).fit(few)
    predicted = predictor.predict(unseen)["time_ms"].to_numpy()
    found = score(unseen["time_ms"].to_numpy(), predicted, task_numbers(unseen))
    stated = of_it.held_out
    assert 0.4 * stated["median_ape"] < found["median_ape"] < 2.5 * stated["median_ape"]
    assert found["top5_regret"] < stated["top5_regret"] + 0.25
