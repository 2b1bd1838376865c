"""What is measured for an engine's files, on replayed times."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import vllm_times

from foretune.device import find_device
from foretune.errors import OutputError, ProblemError
from foretune.measurement import Status
from foretune.plan import describe_model
from foretune.plan.engine_files import vllm_kernels
from foretune.plan.engine_files.folder import check_folder, write_files
from foretune.plan.engine_files.guesses import BLOCK_SHAPE, EngineFile, engine_files
from foretune.plan.engine_files.layer import Layer
from foretune.plan.engine_files.measuring import measure_file, problem_of
from foretune.plan.engine_files.tuned_layers import TunedLayerIndex
from foretune.plan.engine_files.vllm import TunedLayer, read_layer
from foretune.space import Configuration

pytest.importorskip("torch")  # which says how much memory a block has

H200 = "NVIDIA H200"
LAYER = Layer(8, 1792, H200)
GUESS = Configuration({**vllm_times.DEFAULT, "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128})


@pytest.fixture
def mixtral(monkeypatch):
    monkeypatch.setattr(vllm_kernels, "version", lambda name: "0.33.0")
    monkeypatch.setattr(vllm_kernels, "_vllm", lambda name: SimpleNamespace(
        get_default_config=lambda *sizes: vllm_times.DEFAULT))  # fmt: skip
    return describe_model("mistralai/Mixtral-8x7B-v0.1")


@pytest.fixture
def guessed():
    known = TunedLayerIndex([TunedLayer(Layer(8, 2048, H200), {16: GUESS})])
    (file,) = engine_files({LAYER: ("experts",)}, TunedLayerIndex([]), known)
    return file


def test_a_layer_is_a_problem_of_vllms_kernel(mixtral):
    deepseek = describe_model("deepseek-ai/DeepSeek-V3")
    kernel, problem = problem_of(Layer(256, 256, H200, "fp8_w8a8", BLOCK_SHAPE), deepseek, 16)
    asked = {"M": 16, "E": 256, "top_k": 8, "N": 256, "K": 7168, "dtype": "fp8_block"}
    assert kernel.name == "vllm_experts"
    assert {name: problem[name] for name in asked} == asked
    kernel, problem = problem_of(Layer(0, 512, H200, "fp8_w8a8", BLOCK_SHAPE, 7168), deepseek, 4)
    assert (kernel.name, problem["N"], problem["K"]) == ("vllm_linear", 512, 7168)
    assert problem_of(LAYER, mixtral, 1)[1]["dtype"] == "bf16"
    for layer in (Layer(8, 64, H200, "int4_w4a16"), Layer(8, 64, H200, "fp8_w8a8", (64, 64))):
        with pytest.raises(ProblemError, match="are not measured"):
            problem_of(layer, mixtral, 1)


def test_entries_beat_the_default_or_are_the_default(mixtral, guessed, tmp_path):
    runner = vllm_times.Replaying(find_device(H200))
    file = measure_file(guessed, mixtral, runner, tokens=(16, 512), budget=12, store=False)
    assert file.status == "measured"
    assert [c for p, c in runner.asked if p["M"] == 16][:2] == [
        Configuration(vllm_times.DEFAULT), GUESS,
    ]  # fmt: skip
    small, large = file.measured[16], file.measured[512]
    assert small.beats_default
    assert small.speedup_low <= small.speedup <= small.speedup_high
    assert vllm_times.time_ms({"M": 16}, small.config) <= vllm_times.time_ms({"M": 16}, GUESS)
    assert (large.config, large.speedup, large.beats_default) == (vllm_times.DEFAULT, 1.0, False)
    (path,) = write_files(tmp_path, [file], "vllm")
    assert dict(read_layer(LAYER, path).configs) == {16: small.config, 512: large.config}
    about = json.loads((tmp_path / "foretune.json").read_text())["files"][path.name]
    assert about["entries"]["16"]["gain"] == [small.speedup, small.speedup_low, small.speedup_high]


def test_no_file_where_the_default_is_best_but_the_card_knows(mixtral, guessed, tmp_path):
    runner = vllm_times.Replaying(find_device(H200))
    (path,) = write_files(tmp_path, [guessed], "vllm")
    file = measure_file(guessed, mixtral, runner, tokens=(512, 1024), budget=8, store=False)
    assert file.status == "default is best"
    assert write_files(tmp_path, [file], "vllm") == {}
    assert not path.exists()  # the guess is no better than the default, as far as was measured
    later = measure_file(guessed, mixtral, runner, tokens=(16,), budget=8, store=False)
    assert list(write_files(tmp_path, [later], "vllm")) == [path]
    configs = read_layer(LAYER, path).configs
    assert set(configs) == {16, 512, 1024}  # else 1,024 tokens would take what is best for 16
    assert configs[1024] == vllm_times.DEFAULT


def test_an_interrupted_run_resumes(mixtral, guessed, tmp_path):
    class Interrupted(vllm_times.Replaying):
        def run(self, *args):
            for measured in super().run(*args):
                if len(self.asked) > 5:
                    raise KeyboardInterrupt
                yield measured

    store = str(tmp_path / "store.db")
    first, again, last = Interrupted(find_device(H200)), *(
        vllm_times.Replaying(find_device(H200)) for _ in range(2)
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        measure_file(guessed, mixtral, first, tokens=(16,), budget=8, store=store)
    done = measure_file(guessed, mixtral, again, tokens=(16,), budget=8, store=store)
    assert not set(again.asked) & set(first.asked[:5])
    assert len(again.asked) <= 4
    same = measure_file(guessed, mixtral, last, tokens=(16, 64), budget=8, store=store)
    assert sum(p["M"] == 16 for p, _ in last.asked) <= 1
    assert same.measured[16].speedup == pytest.approx(done.measured[16].speedup, rel=0.2)
    assert 64 in same.measured


def test_a_folder_is_looked_at_before_anything_is_measured(tmp_path):
    check_folder(tmp_path / "new" / "folder", [LAYER], "vllm")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / LAYER.file_name_for("vllm")).write_text("{}")
    with pytest.raises(OutputError, match="was not written by Foretune"):
        check_folder(tmp_path, [LAYER], "vllm")
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match=r"cannot read .*Not a directory"):
            check_folder(folder, [], "vllm")


def test_what_fails_is_named_and_the_rest_goes_on(mixtral):
    class Failing(vllm_times.Replaying):
        def run(self, kernel, problem, configs, incumbent_ms=0):
            for m in super().run(kernel, problem, configs, incumbent_ms):
                broken = replace(m, status=Status.RUNTIME_ERROR, time_ms=math.nan, error="broken")
                yield broken if problem["M"] == 16 else m

    file = EngineFile(LAYER, ("experts",), "nothing similar")
    runner = Failing(find_device(H200))
    found = measure_file(file, mixtral, runner, tokens=(16, 64), budget=6, store=False)
    assert set(found.measured) == {64}
    assert set(found.failed) == {16}
    unknown = EngineFile(Layer(8, 64, H200, "int4_w4a16"), ("experts",), "nothing similar")
    found = measure_file(unknown, mixtral, runner, tokens=(16,), store=False)
    assert found.status == "nothing similar"
    assert "are not measured" in found.failed[16]
    assert found.configs == {}


def test_a_guess_never_replaces_what_was_measured(mixtral, guessed, tmp_path):
    runner = vllm_times.Replaying(find_device(H200))
    file = measure_file(guessed, mixtral, runner, tokens=(16,), budget=8, store=False)
    (path,) = write_files(tmp_path, [file], "vllm")
    before = path.read_text()
    path.unlink()
    ((again, held),) = write_files(tmp_path, [guessed], "vllm").items()
    assert (again, set(held.measured)) == (path, {16})
    assert path.read_text() == before
    assert json.loads((tmp_path / "foretune.json").read_text())["files"][path.name]["measured"]
