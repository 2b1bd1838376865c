"""Recorded calls, tuning them ahead, strict choices and buckets: `warm_up.py`."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
triton = pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

import triton.language as tl
from commands import fails
from hypothesis import given
from hypothesis import strategies as st
from replay_driver import ReplayDriver
from tuned_kernels import by_size, configs, copy

import foretune
from foretune.cli import main
from foretune.collect.compiled.arguments import Tensor, describe
from foretune.errors import ForetuneWarning, UsageError
from foretune.tune.triton.call_recorder import (
    RECORD_VARIABLE,
    RecordedCall,
    read_calls,
)
from foretune.tune.triton.warm_up import allocate_argument, warm_up


@pytest.fixture
def device(monkeypatch, tmp_path):
    monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "tuned.db"))
    monkeypatch.chdir(tmp_path)
    with ReplayDriver(by_size).active() as active:
        yield active


@pytest.fixture
def served(device):
    """Return the module as a new process would have it."""
    import importlib

    import served_kernels

    return importlib.reload(served_kernels)


def serve(served, tensors, *sizes):
    for n in sizes:
        served.tuned[served.grid](*tensors, n)


class TestCalls:
    def test_warm_up_tunes_recorded_calls(self, served, device, tensors, monkeypatch, capsys):
        import importlib

        monkeypatch.setenv(RECORD_VARIABLE, "calls/log.jsonl")
        serve(served, tensors, 64, 1000, 1000, 64)
        monkeypatch.delenv(RECORD_VARIABLE)
        assert [c.args[2] for c in read_calls("calls/log.jsonl")] == [64, 1000]
        monkeypatch.setenv("FORETUNE_STORE", "elsewhere.db")
        importlib.reload(served)
        device.launches.clear()
        assert main(["warm-up", "calls/log.jsonl", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["calls"]
        assert [c["config"]["BLOCK"] for c in found] == [128, 256]
        assert [c["time_ms"] for c in found] == [1.0, 1.0]
        assert {launch.grid[0] for launch in device.launches} == {1, 4, 8, 16}
        importlib.reload(served)
        device.launches.clear()
        serve(served, tensors, 64, 1000)
        assert len(device.launches) == 2  # no call measures
        assert main(["warm-up", "calls/log.jsonl"]) == 0
        assert "float16[64] float32[64] 1000" in capsys.readouterr().out
        importlib.reload(served)
        assert main(["warm-up", "calls/log.jsonl", "--store", "third.db"]) == 0
        assert Path("third.db").exists()
        assert "2 calls" in capsys.readouterr().out
        command = ["warm-up", "calls/log.jsonl", "--store", "none"]
        assert "needs the store" in fails(capsys, 2, *command)

    @pytest.mark.parametrize("timing", [1.5, np.array([1.5, 1.0, 2.0])])
    def test_warm_up_benchmarker_may_return_a_number_or_an_array(
        self, served, device, tensors, monkeypatch, timing
    ):
        monkeypatch.setattr(served.tuned, "_do_bench", lambda call, quantiles: (call(), timing)[1])
        call = RecordedCall("served_kernels:tuned", (*map(describe, tensors), 64), {}, (1,))
        (warmed,) = warm_up([call])
        assert warmed.time_ms == 1.5

    def test_record_names_a_script_by_its_file(self, monkeypatch, tmp_path):
        import served_kernels

        text = Path(served_kernels.__file__).read_text()
        text += "import torch\nx = torch.ones(64)\ntuned[grid](x, x + 1, 64)\n"
        (tmp_path / "script.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        monkeypatch.setenv("FORETUNE_STORE", "tuned.db")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setenv(RECORD_VARIABLE, "calls.jsonl")
        monkeypatch.chdir(tmp_path)
        subprocess.run([sys.executable, "script.py"], check=True)
        (call,) = read_calls("calls.jsonl")
        assert call.kernel == f"{tmp_path.resolve()}/script.py:tuned"

    def test_warm_up_finds_modules_in_the_working_folder(
        self, device, tensors, monkeypatch, tmp_path, capsys
    ):
        import served_kernels

        text = Path(served_kernels.__file__).read_text()
        (tmp_path / "kernels_of_this_folder.py").write_text(text)
        call = RecordedCall("kernels_of_this_folder:tuned", (*map(describe, tensors), 64), {}, (1,))
        (tmp_path / "calls.jsonl").write_text(call.to_line())
        monkeypatch.setattr(sys, "path", list(sys.path))
        assert main(["warm-up", "calls.jsonl"]) == 0
        assert "BLOCK=128" in capsys.readouterr().out

    def test_warm_up_without_decorated_calls_is_an_error(self, device, capsys, tmp_path):
        assert "FORETUNE_RECORD_CALLS=FILE" in fails(capsys, 2, "warm-up", "none.jsonl")
        call = RecordedCall("served_kernels:plain", (1,), {}, (1,))
        (tmp_path / "calls.jsonl").write_text(call.to_line() + "\n\n")
        assert "holds no call of x:y" in fails(
            capsys, 2, "warm-up", "calls.jsonl", "--kernel", "x:y"
        )
        assert "not decorated with" in fails(capsys, 2, "warm-up", "calls.jsonl")
        (tmp_path / "calls.jsonl").write_text('{"kernel": 3}')
        assert "not a recorded call" in fails(capsys, 2, "warm-up", "calls.jsonl")

    def test_record_online_calls_once_per_problem(self, device, tensors, monkeypatch):
        monkeypatch.setenv(RECORD_VARIABLE, "log.jsonl")
        kernel = foretune.autotune(configs(64, 128, 256), ["n"], mode="online", store=False)(
            triton.jit(copy)
        )
        for _ in range(6):
            kernel[(1,)](*tensors, 64)
        with open("log.jsonl") as log:
            assert len(log.readlines()) == 1

    def test_recorded_call_new_configuration_is_an_error(self):
        call = RecordedCall("m:k", (1,), {}, {"BLOCK=64": (64,), "BLOCK=128": (128,)})
        assert call.programs({"BLOCK": 128}) == (128,)
        with pytest.raises(UsageError, match=r"BLOCK=256 is new .* record them again"):
            call.programs({"BLOCK": 256})

    def test_record_unwritable_file_warns_and_launches(
        self, served, device, tensors, monkeypatch, tmp_path
    ):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv(RECORD_VARIABLE, "file/log.jsonl")
        with pytest.warns(ForetuneWarning, match="was not recorded: .*file"):
            serve(served, tensors, 64)
        assert device.launches

    @given(
        st.recursive(
            st.one_of(
                st.none(),
                st.booleans(),
                st.integers(-(2**63), 2**63 - 1),
                st.floats(allow_nan=False),
                st.text(),
                st.sampled_from([tl.float16, tl.int64]),
                st.builds(
                    Tensor,
                    st.sampled_from(["float16", "int8"]),
                    st.tuples(st.integers(1, 9), st.integers(1, 9)),
                    st.tuples(st.integers(0, 90), st.just(1)),
                    st.integers(0, 15),
                ),
            ),
            lambda inner: st.lists(inner, max_size=3).map(tuple),
            max_leaves=4,
        )
    )
    def test_recorded_call_line_keeps_arguments(self, argument):
        for grid in ((3, 1), {"BLOCK=64": (3,)}):
            call = RecordedCall("m:k", (argument,), {"a": argument}, grid)
            assert RecordedCall.from_line(call.to_line()) == call

    @given(st.text() | st.from_regex(r'\{"kernel": .*\}', fullmatch=True))
    def test_recorded_call_other_line_is_an_error(self, line):
        with pytest.raises(UsageError, match="not a recorded call"):
            RecordedCall.from_line(line)

    def test_allocate_argument_descriptor_keeps_its_blocks(self):
        from triton.tools.tensor_descriptor import TensorDescriptor

        given = TensorDescriptor.from_tensor(torch.ones(64, 64, dtype=torch.float16), [16, 32])
        call = RecordedCall("m:k", (describe(given),), {}, (1,))
        back = allocate_argument(RecordedCall.from_line(call.to_line()).args[0], "cpu")
        assert back.block_shape == [16, 32]
        assert back.base.shape == (64, 64)
        assert back.base.dtype == torch.float16

    @pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.int32])
    def test_allocate_argument_keeps_layout_and_alignment(self, dtype):
        given = torch.zeros(200, dtype=torch.float32).to(dtype)[4:].as_strided((3, 4), (10, 2), 4)
        made = allocate_argument(describe(given), "cpu")
        assert (made.shape, made.stride(), made.dtype) == ((3, 4), (10, 2), dtype)
        assert made.data_ptr() % 16 == given.data_ptr() % 16
        assert math.isfinite(made.double().sum())
        assert (made == 0).all() == (not dtype.is_floating_point)


class TestStrict:
    def test_strict_without_a_recorded_choice_is_an_error(self, device, tensors):
        kernel, strict = (
            foretune.autotune(configs(64, 128, 256), ["n"], budget="all", strict=s)(
                triton.jit(copy)
            )
            for s in (False, True)
        )
        with pytest.raises(UsageError, match=r"no choice is recorded for copy on .*n=64.*warm-up"):
            strict[(1,)](*tensors, 64)
        assert device.launches == []
        kernel[(1,)](*tensors, 64)
        device.launches.clear()
        strict[(1,)](*tensors, 64)
        assert [launch.config["BLOCK"] for launch in device.launches] == [128]


class TestBuckets:
    def decorate(self, budget="all", **buckets):
        return foretune.autotune(
            configs(64, 128, 256), ["n"], budget=budget, store=False, buckets=buckets
        )(triton.jit(copy))

    def test_buckets_values_between_bounds_are_one_problem(self, device, tensors):
        kernel = self.decorate(n=[64, 128, 1024])
        for n in (960, 1008, 1024):
            kernel[(1,)](*tensors, n)
        assert len(device.launches) == 3 + 3
        kernel[(1,)](*tensors, 64)
        assert len(device.launches) == 6 + 4
        kernel[(1,)](*tensors, 4096)  # beyond all bounds: by itself
        kernel[(1,)](*tensors, 8192)
        assert len(device.launches) == 10 + 8

    def test_buckets_keep_classes_that_compile_differently(self, device, tensors):
        kernel = self.decorate(budget=0, n=[1024])
        for n in (1008, 1024, 1009, 1010):
            kernel[(1,)](*tensors, n)
        assert len([at for p in kernel._plans for at in p.entries]) == 2

    def test_buckets_invalid_bounds_are_an_error(self):
        with pytest.raises(UsageError, match="give whole numbers, ascending"):
            self.decorate(n=[128, 64])
        with pytest.raises(UsageError, match="'m', which is not in key"):
            self.decorate(m=[64])


def recorded(*arguments):
    """Return arguments as a file of recorded calls keeps them."""
    call = RecordedCall("module:kernel", tuple(map(describe, arguments)), {}, (1,))
    return RecordedCall.from_line(call.to_line()).args


def test_recorded_descriptor_keeps_its_own_shape():
    """All heads as rows, as in Triton's tutorial of attention."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    heads = torch.empty(2, 8, 128, 64, dtype=torch.float16)
    (found,) = recorded(TensorDescriptor(heads, [2 * 8 * 128, 64], [64, 1], [128, 64]))
    assert (found.shape, found.strides) == ([2048, 64], [64, 1])
    assert found.base.shape == (2, 8, 128, 64)


def test_recorded_lists_tuples_and_numpy_numbers_are_what_they_were():
    found = recorded([1, 2], (1, [2.5]), np.int64(3), tl.constexpr(4), None, True)
    assert list(found) == [[1, 2], (1, [2.5]), 3, 4, None, True]


def test_recording_refuses_what_the_file_cannot_hold():
    with pytest.raises(UsageError, match="an argument of dict cannot be recorded"):
        recorded({"a": 1})


def test_warm_up_entries_may_set_different_constants(device, tensors, monkeypatch):
    import served_kernels

    entries = [*configs(64), triton.Config({"BLOCK": 128, "m": 3}), triton.Config({"m": 5})]
    kernel = foretune.autotune(entries, ["n"], budget="all", store=False)(triton.jit(copy))
    monkeypatch.setattr(served_kernels, "tuned", kernel)
    grids = {"BLOCK=64": (4,), "BLOCK=128,m=3": (2,), "m=5": (8,)}
    call = RecordedCall("served_kernels:tuned", (*map(describe, tensors), 256), {}, grids)

    (warmed,) = warm_up([call])

    assert warmed.measured == 3
    launched = {launch.arguments["m"]: launch.grid[0] for launch in device.launches}
    assert launched == {1: 4, 3: 2, 5: 8}
