"""LLVM IR is followed without a run: counts, chains and cache lines of calls that are known."""

import shutil

import numpy as np
import pytest
from predict_from_code.calls import code_of, count_code
from predict_from_code.functions import REGION_BITS, read_function
from predict_from_code.operations import Operations, Traffic
from predict_from_code.sampled_run import UNKNOWN_TRIPS, SampledRun

from foretune.collect.wrapped.function import FunctionKernel
from foretune.collect.wrapped.source import LaunchShape, Source
from foretune.collect.wrapped.source_kernel import SourceKernel
from foretune.errors import ForetuneError, UsageError

A, B = 1 << REGION_BITS, 2 << REGION_BITS
SUM_OF_ROWS = """
define void @rows(ptr noalias %a, ptr %b, i64 %n, i64 %m) {
entry:
  br label %outer

outer:                                            ; preds = %entry, %next
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %row = mul nuw nsw i64 %i, %m
  br label %inner

inner:
  %j = phi i64 [ 0, %outer ], [ %j.next, %inner ]
  %s = phi float [ 0.000000e+00, %outer ], [ %s.next, %inner ]
  %at = add nsw i64 %row, %j
  %p = getelementptr inbounds float, ptr %a, i64 %at
  %x = load float, ptr %p, align 4
  %s.next = fadd float %s, %x
  %j.next = add nuw nsw i64 %j, 1
  %done = icmp eq i64 %j.next, %m
  br i1 %done, label %next, label %inner

next:
  %q = getelementptr inbounds float, ptr %b, i64 %i
  store float %s.next, ptr %q, align 4
  %i.next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %outer, label %end

end:
  ret void
}
"""
DOUBLING = """
define i64 @doubling(i64 %n, ptr %a) {
entry:
  br label %loop
loop:
  %s = phi i64 [ 1, %entry ], [ %t, %loop ]
  %t = shl i64 %s, 1
  %go = icmp slt i64 %t, %n
  br i1 %go, label %loop, label %search
search:
  %k = phi i64 [ 0, %loop ], [ %k.next, %search ]
  %p = getelementptr i32, ptr %a, i64 %k
  %v = load i32, ptr %p
  %k.next = sext i32 %v to i64
  %found = icmp eq i32 %v, 7
  br i1 %found, label %end, label %search
end:
  ret i64 %s
}
"""


def rows_run(n, m):
    function = read_function(SUM_OF_ROWS, "rows")
    return SampledRun(function, {"%a": A, "%b": B, "%n": n, "%m": m})


@pytest.mark.parametrize(("n", "m"), [(1, 2), (3, 3), (50, 7), (1000, 2000)])
def test_blocks_run_as_often_as_the_loops_say(n, m):
    counts = rows_run(n, m).counts
    found = {block: counts[block] for block in ("%outer", "%inner", "%next", "%end")}
    assert found == {"%outer": n, "%inner": n * m, "%next": n, "%end": 1}


def test_a_loop_that_is_not_linear_is_followed_and_one_that_data_ends_is_guessed():
    run = SampledRun(read_function(DOUBLING, "doubling"), {"%n": 1000, "%a": A})
    assert run.counts["%loop"] == 9 + 1
    assert run.counts["%search"] == UNKNOWN_TRIPS


def test_operations_are_counted_and_the_sum_waits_for_itself():
    operations = Operations(rows_run(2, 4000))
    totals = operations.totals()
    assert (totals["fadd"], totals["load"], totals["store"]) == (8000, 8000, 2)
    assert operations.chain_cycles(operations.function.loops["%inner"]) == 3
    assert totals["cycles"] > 2.5 * 8000


def test_an_address_that_data_decides_misses_a_small_cache():
    run = SampledRun(read_function(DOUBLING, "doubling"), {"%n": 1000, "%a": A})
    totals = Traffic(run, {1: 1 << 30}).totals({"l1": 64.0, "l2": float(1 << 40)})
    assert totals["l1"] == pytest.approx(UNKNOWN_TRIPS, rel=0.01)
    assert "l2" not in totals


def test_lines_enter_a_cache_that_is_too_small():
    traffic = Traffic(rows_run(100, 1600), {1: 640_000.0, 2: 400.0})
    totals = traffic.totals({"l1": 32_768.0, "l2": 1e6})
    assert totals["footprint"] == pytest.approx(640_000, rel=0.01)
    assert totals["l1"] == pytest.approx(10_000, rel=0.01)
    assert "l2" not in totals


def test_a_function_that_is_not_there_is_named():
    with pytest.raises(ForetuneError, match="no function 'columns'"):
        read_function(SUM_OF_ROWS, "columns")


def test_code_of_numba():
    numba = pytest.importorskip("numba")

    @numba.njit
    def product(a, b, c, tile=4):
        for i0 in range(0, a.shape[0], tile):
            for i in range(i0, min(i0 + tile, a.shape[0])):
                for k in range(a.shape[1]):
                    for j in range(b.shape[1]):
                        c[i, j] += a[i, k] * b[k, j]

    n = 48
    arrays = [np.ones((n, n)) for _ in range(3)]
    kernel = FunctionKernel(product, {"tile": (4, 16)}, arrays)
    problem = kernel.problem()
    code = code_of(kernel, problem, kernel.default(problem))
    totals = count_code(code, {"l1": 1e4})
    vector = 4  # doubles per unit
    assert totals["fmul"] + totals.get("fused", 0) <= n**3
    assert totals["fadd"] >= n**3 / vector
    assert totals["footprint"] == pytest.approx(3 * n * n * 8, rel=0.1)
    assert totals["l1"] > 0


def test_a_plain_function_has_no_code():
    kernel = FunctionKernel(lambda x, k=1: x * k, {"k": (1, 2)}, (np.ones(3),))
    with pytest.raises(UsageError, match=r"numba\.njit"):
        code_of(kernel, kernel.problem(), kernel.default(kernel.problem()))


@pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang")
def test_code_of_c():
    text = "void add(float *restrict x, int n) { for (int i = 0; i < n; i += STEP) x[i] += 1.0f; }"
    source = Source("add", text, "C", ".c", options=("-O1",))
    x = np.zeros(6400, np.float32)
    shape = LaunchShape(6400, (None, None, None), ("block_size_x",))
    kernel = SourceKernel(source, shape, [x, np.int32(6400)], {"STEP": (1, 4)})
    problem = kernel.problem()
    totals = [count_code(code_of(kernel, problem, c), {}) for c in kernel.space(problem)]
    assert [t["store"] for t in totals] == [6400, 1600]
