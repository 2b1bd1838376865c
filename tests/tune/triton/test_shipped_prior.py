"""A shipped predictor as the prior of a decorated kernel: `prior.py`."""

import dataclasses
import json
import logging
import math
import warnings

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from replay_driver import ReplayDriver

import foretune
from foretune import Device, Store
from foretune.datasets import from_measurements
from foretune.errors import ForetuneWarning
from foretune.models import Predictor
from foretune.models.guides.request import PredictorRequest
from foretune.models.saved import pretrained
from foretune.models.saved.pretrained import NotShipped, Pretrained, find_pretrained
from foretune.problem import Problem
from foretune.registry import get_kernel
from foretune.search.encoding import KernelRuns
from foretune.space import Configuration
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import PriorFactory
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.runtime import current_device_index, device_at
from foretune.tune.triton.source_hash import source_hash

BLOCKS = (16, 32, 64, 256, 1024)
BEST = 32
FUNCTION = triton.jit(tuned_kernels.copy)
SOURCE = source_hash(FUNCTION)


def peculiar(launch):
    """The second smallest block is fastest, which no rule expects."""
    off = math.log2(launch.config["BLOCK"] / BEST)
    return launch.arguments["n"] / 1000 * (1 + off**2)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def make(**options):
    configs = [triton.Config({"BLOCK": b}) for b in BLOCKS]
    return foretune.autotune(configs, ["n"], **options)(FUNCTION)


@pytest.fixture
def device():
    with ReplayDriver(peculiar).active():
        yield device_at(current_device_index())


@pytest.fixture
def shipped(device, tensors, tmp_path, monkeypatch):
    """The card of a predictor that is shipped for the kernel on the device."""
    store = Store(tmp_path / "learned.db")
    kernel = make(budget="all", store=store)
    for n in (256, 1024, 4096):
        kernel[grid](*tensors, n)
    (subject,) = store.subjects()
    assert (subject.kernel, subject.source) == ("copy", SOURCE)
    runs = from_measurements(store.measurements(subject), device)
    of_it = Pretrained("copy", SOURCE, device.name, device.architecture, device.specs, "replayed")
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path / "shipped")
    of_it.folder(pretrained.SHIPPED).parent.mkdir(parents=True)
    Predictor(targets=("time_ms",)).fit(runs).save(of_it.folder(pretrained.SHIPPED))
    card = of_it.folder(pretrained.SHIPPED) / pretrained.PRETRAINED_CARD
    card.write_text(json.dumps(dataclasses.asdict(of_it)))
    return of_it


CALL = Call("copy", SOURCE, Problem(), {}, Device("any", "gpu"), None)


def priors(device, source=SOURCE):
    return PriorFactory("copy", source, device, Options())


def believes(device):
    return priors(device).predicts


@pytest.mark.usefixtures("shipped")
def test_shipped_predictor_guides_the_first_call(tensors):
    kernel = make(budget=0, store=False)
    assert kernel.choose(*tensors, 3072, grid=grid).kwargs["BLOCK"] == BEST


@pytest.mark.usefixtures("shipped")
def test_predictor_none_starts_without_knowledge(tensors):
    kernel = make(budget=0, store=False, predictor=None)
    assert kernel.choose(*tensors, 3072, grid=grid).kwargs["BLOCK"] != BEST


def test_shipped_predictor_of_other_code_or_device_is_foreign(device, shipped, caplog):
    rows = KernelRuns([Problem(n=1024)] * 2, [Configuration(BLOCK=b) for b in (16, 64)], [{}] * 2)
    with caplog.at_level(logging.INFO, "foretune"):
        assert not priors(device).make_prior(CALL, rows).foreign
        assert priors(dataclasses.replace(device, name="another")).make_prior(CALL, rows).foreign
        assert priors(device, "0" * 16).make_prior(CALL, rows).foreign
    assert "replayed was measured on " in caplog.text
    assert caplog.messages[-1].endswith("replayed was measured with other code of copy")


def test_shipped_predictor_damaged_is_not_used(device, shipped):
    (shipped.folder(pretrained.SHIPPED) / "predictor.json").write_text("{")
    with pytest.warns(ForetuneWarning, match="the shipped predictor is not used"):
        assert not believes(device)


def test_shipped_predictor_of_unknown_kernel_is_none(device, caplog):
    with caplog.at_level(logging.INFO, "foretune"):
        assert not PriorFactory("unheard_of", SOURCE, device, Options()).predicts
    assert caplog.messages[0].endswith("there is none for this kernel")


@pytest.mark.parametrize("board", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
@pytest.mark.parametrize("name", ["copy", "matmul", "softmax"])
def test_shipped_predictor_of_a_kernel_with_the_same_name_is_not_used(name, board):
    """What is shipped is of other code, on another device: only the name is the same."""
    with ReplayDriver(peculiar, device=board).active(), warnings.catch_warnings():
        warnings.simplefilter("error")
        device = device_at(current_device_index())
        assert device.name == board
        assert not PriorFactory(name, SOURCE, device, Options()).predicts


def test_shipped_predictor_of_triton_gemm_is_trusted_on_its_device():
    """It is trusted for its own code on an H100; other code or another device is foreign."""
    source = get_kernel("triton_gemm").source_hash
    for board, code, foreign in [
        ("NVIDIA H100 80GB HBM3", source, False),
        ("NVIDIA H100 80GB HBM3", SOURCE, True),
        ("NVIDIA H100 PCIe", source, True),
        ("NVIDIA H200", source, True),
    ]:
        with ReplayDriver(peculiar, device=board).active():
            device = device_at(current_device_index())
        guide = find_pretrained(PredictorRequest("triton_gemm", code, device))
        assert bool(guide.mismatch) == foreign
        assert guide.has_valid_interval != foreign
    with pytest.raises(NotShipped):
        find_pretrained(PredictorRequest("triton_gemm", SOURCE, device))
