"""Many configurations in worker processes: order, failures, time limits; and Triton's cache."""

import subprocess
import sys
import time

import pytest

from foretune.collect.compiled.arguments import Tensor
from foretune.collect.compiled.compile_pool import compile_configs
from foretune.collect.compiled.gpu_targets import get_target
from foretune.errors import UsageError
from foretune.measurement import Status

pytest.importorskip("triton")
SM_90 = get_target("sm_90")
F16 = Tensor("float16")
VECTORS = [F16, F16, F16, 4096]
PATIENT_S = 120.0


def outcomes(kernel, args, configs, target=SM_90, **options):
    options = {"jobs": 1, "limit_s": PATIENT_S} | options
    done = dict(compile_configs(kernel, args, configs, target, **options))
    return [done[i] for i in range(len(configs))]


def test_compile_configs_results_belong_to_configurations(toys):
    configs = [{"BLOCK": b, "num_warps": w} for b in (128, 512) for w in (1, 4)]
    done = outcomes("triton_toys:add", VECTORS, configs, jobs=2)
    assert [dict(o.config) for o in done] == configs
    assert all(o.ok and o.compile_s > 0 and o.hash for o in done)
    assert [o.static["warps"] for o in done] == [1, 4, 1, 4]


def test_compile_configs_hang_or_crash_costs_one_configuration(toys):
    configs = [{"BLOCK": 64, "HOW": how} for how in ("hang", "ok", "die", "fine")]
    started = time.monotonic()
    hung, ok, died, fine = outcomes("triton_toys:scale", [F16], configs, limit_s=10.0)
    assert (hung.status, hung.error) == (Status.TIMEOUT, "not compiled within 10 s")
    assert (died.status, died.error) == (Status.COMPILE_ERROR, "the process died: SIGABRT")
    assert ok.ok
    assert fine.ok
    assert time.monotonic() - started < 500  # not until the hanging one would have ended


def test_compile_configs_without_configurations_is_empty(toys):
    assert list(compile_configs("triton_toys:add", VECTORS, [], SM_90)) == []


def test_compile_configs_zero_jobs_is_refused():
    with pytest.raises(UsageError, match="-1 jobs compile nothing: give at least 1"):
        list(compile_configs("triton_toys:add", VECTORS, [{"BLOCK": 64}], SM_90, jobs=-1))


def test_compile_configs_wrong_arguments_are_refused(toys):
    with pytest.raises(UsageError, match="add lacks out, n"):
        outcomes("triton_toys:add", VECTORS[:2], [{"BLOCK": 2**n} for n in range(4, 12)])


def test_compile_configs_early_stop_compiles_no_more(toys):
    configs = [{"BLOCK": 64, "HOW": "fine", "num_warps": n} for n in (1, 2, 4, 8, 16)]
    results = compile_configs("triton_toys:scale", [F16], configs, SM_90, jobs=1, limit_s=PATIENT_S)
    assert next(results)[1] is not None
    results.close()


LEAVES = """
import sys
sys.path[:] = {path!r}
from foretune.collect.compiled.compile_pool import compile_configs
from foretune.collect.compiled.gpu_targets import get_target
from foretune.collect.compiled.arguments import Tensor
configs = [{{"BLOCK": 64, "HOW": how}} for how in ("fine", "hang", "ok")]
args = "triton_toys:scale", [Tensor("float16")], configs, get_target("sm_90")
results = compile_configs(*args, jobs=1, limit_s=400.0)
print(next(results)[1].status.value)
"""


def test_compile_configs_exit_waits_for_no_compiler(toys):
    command = [sys.executable, "-c", LEAVES.format(path=sys.path)]
    assert subprocess.check_output(command, text=True, timeout=PATIENT_S) == "ok\n"


@pytest.mark.parametrize("device", ["NVIDIA H200", "AMD Instinct MI300X"])
def test_compile_configs_code_is_found_by_launch(toys, tmp_path, monkeypatch, device):
    """Built in another process from types alone; looked up by a launch with tensors."""
    torch = pytest.importorskip("torch")
    from replay_driver import ReplayDriver
    from triton import knobs

    from foretune.device import find_device

    target = get_target(find_device(device).architecture)
    n = 1024
    configs = [
        {**c.kwargs, "num_warps": c.num_warps, "num_stages": c.num_stages}
        for c in toys.tuned_copy.configs
    ]
    built = outcomes(
        "triton_toys:tuned_copy",
        [torch.float16, torch.float16, n],
        configs,
        target,
        cache_dir=tmp_path,
    )
    assert [o.cached for o in built] == [False, False]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    hits = []
    monkeypatch.setattr(
        knobs.compilation, "listener", lambda *, cache_hit, **_: hits.append(cache_hit)
    )
    x = torch.zeros(n, dtype=torch.float16)
    y = torch.zeros(n, dtype=torch.float16)
    with ReplayDriver(lambda launch: 1.0, device=device, compile=True).active():
        toys.tuned_copy.cache.clear()
        toys.tuned_copy[lambda meta: (triton_cdiv(n, meta["BLOCK"]),)](x, y, n)
        assert hits == [True, True]
        toys.tuned_copy.cache.clear()
        toys.tuned_copy[(8,)](x, y, n + 1)  # another specialisation: not built
        assert hits == [True, True, False, False]


def test_compile_configs_sends_descriptors_without_memory(toys, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from replay_driver import ReplayDriver
    from triton import knobs
    from triton.tools.tensor_descriptor import TensorDescriptor

    matrix = torch.zeros(1024, 1024, dtype=torch.float16)
    args = [TensorDescriptor.from_tensor(matrix, [32, 64]), matrix, 1024]
    (built,) = outcomes("triton_toys:tile_copy", args, [{"BM": 32, "BN": 64}], cache_dir=tmp_path)
    assert built.error == ""
    hits = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        knobs.compilation, "listener", lambda *, cache_hit, **_: hits.append(cache_hit)
    )
    with ReplayDriver(lambda launch: 1.0, compile=True).active():
        toys.tile_copy[(1,)](*args, BM=32, BN=64)
    assert hits == [True]


def triton_cdiv(n, block):
    return -(-n // block)


def test_compile_configs_mistake_of_one_entry_is_its_result(toys):
    configs = [{"BLOCK": 64}, {}, {"BLOCK": 64, "BLOK": 1}, {"BLOCK": 128, "maxnreg": 0}]
    fine, lacking, mistyped, without_registers = outcomes("triton_toys:add", VECTORS, configs)
    assert fine.ok
    assert "add lacks BLOCK" in lacking.error
    assert "BLOK" in mistyped.error
    assert "value expected for maxnreg" in without_registers.error
    failed = (lacking, mistyped, without_registers)
    assert {outcome.status for outcome in failed} == {Status.COMPILE_ERROR}


def test_compile_configs_takes_values_of_any_type(toys):
    """None and Triton's types, as lists of authors have them; results show them as text."""
    import triton.language as tl

    configs = [{"BLOCK": 64, "KIND": tl.float16, "BIAS": None}]
    (outcome,) = outcomes("triton_toys:converted", [F16, F16], configs)
    assert outcome.ok, outcome.error
    assert outcome.config == {"BLOCK": 64, "KIND": "fp16", "BIAS": "None"}
