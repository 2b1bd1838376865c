"""Item of `tools.py`: FlashInfer's own AutoTuner, with Foretune and without.

It tunes a product in Triton, by its clock. FlashInfer's own operators take minutes to build.
Without a GPU, the programs are compiled, and the times are made up.
"""

import importlib.util
import math
from typing import Any

import torch
import triton
import triton.language as tl
from scipy.stats import gmean
from smoke_rows import REAL, Run

from foretune.errors import describe_error

BUDGET = 4
SIDE = 2048
BUCKETS = (16, 64, 256, 1024, 4096)
"""Rows of the product."""
TACTICS = (
    (16, 64, 64, 4, 4),
    (16, 128, 128, 3, 4),
    (32, 64, 64, 4, 4),
    (32, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (64, 128, 64, 3, 4),
    (64, 256, 32, 4, 8),
    (128, 64, 64, 4, 4),
    (128, 128, 32, 4, 4),
    (128, 128, 64, 3, 8),
    (128, 256, 64, 3, 8),
    (256, 64, 32, 4, 8),
)
"""Rows, columns and depth of a tile, stages, warps."""
ERROR_LIMIT = 5e-3
"""Allowed relative error of float16, in the 2-norm."""
NOISE = 0.03
"""By how much the choices may be slower than the default, whose times are of another tuning."""
DEVICE = "cuda" if REAL else "meta"
Bucket = int
Tactic = tuple[int, ...]


@triton.jit
def product_of_rows(
    a,
    b,
    c,
    rows,
    side,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Multiply by a square matrix, whose side is a multiple of the tiles'."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = i[:, None] < rows
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, side, DEPTH):
        k = start + tl.arange(0, DEPTH)
        left = tl.load(a + i[:, None] * side + k[None, :], mask=inside, other=0.0)
        total = tl.dot(left, tl.load(b + k[:, None] * side + j[None, :]), total)
    tl.store(c + i[:, None] * side + j[None, :], total.to(c.dtype.element_ty), mask=inside)


def multiply(a: torch.Tensor, b: torch.Tensor, tactic: Tactic) -> torch.Tensor:
    """Return the product by a tactic."""
    rows, columns, depth, stages, warps = tactic
    c = torch.empty(len(a), SIDE, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(len(a), rows), SIDE // columns)
    product_of_rows[grid](
        a,
        b,
        c,
        len(a),
        SIDE,
        ROWS=rows,
        COLUMNS=columns,
        DEPTH=depth,
        num_stages=stages,
        num_warps=warps,
    )
    return c


class FlashInfer:
    """FlashInfer's AutoTuner; ``timed`` has the milliseconds that its clock gave."""

    def __init__(self) -> None:
        from flashinfer.autotuner import autotuner

        self._tool = autotuner
        self.timed: dict[Bucket, dict[Tactic, float]] = {}
        real = autotuner.AutoTuner._profile_single_kernel

        def profile(tuner: Any, runner: Any, inputs: Any, tactic: Any, *args: Any, **k: Any) -> Any:
            if REAL:
                time_ms = real(tuner, runner, inputs, tactic, *args, **k)
            else:
                runner.forward(inputs, tactic)
                time_ms = made_up(len(inputs[0]), runner.tactic(tactic))
            self.timed.setdefault(len(inputs[0]), {})[runner.tactic(tactic)] = time_ms
            return time_ms

        autotuner.AutoTuner._profile_single_kernel = profile
        if not REAL:
            torch.cuda.is_current_stream_capturing = lambda: False

        class Product(autotuner.TunableRunner):  # type: ignore[misc, name-defined]
            def tactic(self, tactic: Any) -> Tactic:
                return TACTICS[0] if tactic == -1 else tuple(tactic)

            def get_valid_tactics(self, inputs: Any, profile: Any) -> list[Any]:
                return list(TACTICS)

            def forward(
                self, inputs: Any, tactic: Any = -1, do_preparation: bool = False, **_: Any
            ) -> Any:
                a, b = inputs
                return multiply(a, b, self.tactic(tactic))

        self.runner = Product()

    def tune(self, inputs: dict[Bucket, list[torch.Tensor]]) -> dict[Bucket, Tactic]:
        """Return FlashInfer's choice for each number of rows."""
        self.timed = {}
        tuner = self._tool.AutoTuner()
        tuner.is_tuning_mode = True
        # The kernel that delays a launch would have to be built; a graph has no gaps to hide.
        tuner._CUDA_GRAPH_DELAY_MICRO_SECS = 0
        tuner.stream_delay_micro_secs = 0
        spec = self._tool.DynamicTensorSpec((0,), (0,), BUCKETS, lambda rows: rows)
        config = self._tool.TuningConfig(dynamic_tensor_specs=(spec,), use_cuda_graph=True)
        chosen = {}
        for rows, tensors in inputs.items():
            _, tactic = tuner.choose_one("product_of_rows", [self.runner], config, tensors)
            chosen[rows] = self.runner.tactic(tactic)
        return chosen


def made_up(rows: int, tactic: Tactic) -> float:
    """Return a time without meaning: best for tiles of a quarter of the rows."""
    height, width, *_ = tactic
    return 1.0 + abs(math.log2(4 * height / rows)) + abs(math.log2(width / 128))


def flashinfer(run: Run) -> None:
    """Tune with all tactics, then with Foretune's door."""
    if importlib.util.find_spec("flashinfer") is None:
        run.leave_out("FlashInfer", "not installed")
        return
    try:
        tool = FlashInfer()
    except Exception as e:
        run.leave_out("FlashInfer", f"it cannot be imported: {describe_error(e)[:200]}")
        return
    from foretune import patch_flashinfer

    weights = torch.randn(SIDE, SIDE, device=DEVICE).half()
    inputs = {m: [torch.randn(m, SIDE, device=DEVICE).half(), weights] for m in BUCKETS}
    alone = tool.tune(inputs)
    times = tool.timed
    undo = patch_flashinfer(BUDGET, store=run.store("flashinfer"))
    try:
        ours = tool.tune(inputs)
    finally:
        undo()
    n_all = sum(map(len, times.values()))
    n_ours = sum(map(len, tool.timed.values()))
    run.check("tactics", 0 < n_ours < n_all, f"{n_ours} timed of {n_all}")

    kept = [min(times[m].values()) / times[m][ours[m]] for m in BUCKETS]
    of_default = [min(times[m].values()) / times[m][TACTICS[0]] for m in BUCKETS]
    mean = gmean(kept)
    run.check(
        "share of FlashInfer's own best",
        mean >= (1 - NOISE) * gmean(of_default),
        f"{mean:.3f}, worst {min(kept):.3f}; the default keeps {gmean(of_default):.3f}",
        times=str(times),
        chosen=str(ours),
    )
    if not REAL:
        return
    errors = []
    for m in BUCKETS:
        a = inputs[m][0]
        wanted = a.double() @ weights.double()
        for tactic in (alone[m], ours[m]):
            found = multiply(a, weights, tactic).double()
            errors.append(float((found - wanted).norm() / wanted.norm()))
    run.check("results", max(errors) <= ERROR_LIMIT, f"largest error of both {max(errors):.2g}")
