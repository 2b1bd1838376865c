"""Items of `smoke.py`: what other compilers than Triton make, tuned."""

import math
import time
from typing import Any

import torch
from smoke_problems import GEMM
from smoke_rows import Run

import foretune


def inductor(run: Run) -> None:
    """Compile a layer with the patch: right, and with few choices timed."""
    import torch._inductor.config as settings

    from foretune.tune.triton.inductor import InductorChooser

    settings.max_autotune_gemm_backends = "TRITON,ATEN"
    settings.benchmark_epilogue_fusion = False
    settings.fx_graph_cache = False
    lists = list[tuple[int, int]]()
    shorten = InductorChooser.shorten

    def noted(self: InductorChooser, choices: list[Any]) -> list[Any]:
        few = shorten(self, choices)
        lists.append((len(choices), len(few)))
        return few

    InductorChooser.shorten = noted  # type: ignore[method-assign]
    foretune.patch_inductor(store=run.store("inductor"))
    layer = torch.nn.Linear(1024, 2048, device="cuda", dtype=torch.float16)
    x = torch.randn(512, 1024, device="cuda", dtype=torch.float16)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(layer(x), approximate="tanh")

    start = time.monotonic()
    with torch.no_grad():
        output = torch.compile(forward, mode="max-autotune")(x).clone()
        seconds = time.monotonic() - start
        linear = x.double() @ layer.weight.double().t() + layer.bias.double()
        error = GEMM.relative_error(output, torch.nn.functional.gelu(linear, approximate="tanh"))
    every, few = (sum(counts) for counts in zip(*lists, strict=True)) if lists else (0, 0)
    run.check(
        "torch.compile",
        error <= 5e-3 and 0 < few < every,
        f"{few} of {every} choices timed in {len(lists)} operations, {seconds:.1f} s, "
        f"error {error:.2g}",
    )


ADD = """
extern "C" __global__ void add(float *c, const float *a, const float *b, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""


def cuda_source(run: Run) -> None:
    """Tune a vector addition in CUDA C++, and run one configuration in another process."""
    import numpy as np

    from foretune.collect import IsolatedRunner
    from foretune.collect.wrapped.source import LaunchShape, Source
    from foretune.collect.wrapped.source_kernel import SourceKernel

    n = 4_000_000
    a, b = np.random.default_rng(0).random((2, n), dtype=np.float32)
    arguments = [np.zeros_like(a), a, b, np.int32(n)]
    knobs = {"block_size_x": [32, 64, 128, 256]}
    answer = [a + b, None, None, None]
    with run.checking("tune_kernel"):
        best = foretune.tune_kernel(
            "add",
            ADD,
            n,
            arguments,
            knobs,
            lang="CUDA",
            answer=answer,
            strategy="brute_force",
            isolated=False,
            verify_s=0.05,
            quiet=True,
        )
        rows = best.to_frame()
        ok = int((rows["status"] == "ok").sum())
        run.check(
            "tune_kernel",
            ok >= len(knobs["block_size_x"]) and ok == len(rows),
            f"{ok} of {len(rows)} right, best {dict(best.config)} {best.time_ms:.4f} ms "
            f"(moves {12 * n / best.time_ms / 1e6:,.0f} GB/s)",
        )
    with run.checking("another process"):
        kernel = SourceKernel(
            Source("add", ADD, "CUDA", ".cu", {}),
            LaunchShape(n, (None, None, None), ()),
            arguments,
            knobs,
            answer=answer,
            device_kind="gpu",
        )
        config = foretune.Configuration(block_size_x=128)
        with IsolatedRunner(foretune.local_device("gpu"), limit_s=25.0) as runner:
            (m,) = runner.run(kernel, kernel.problem(), [config])
        run.check(
            "another process",
            m.ok and not math.isnan(m.power_w),
            f"{m.status.value} {m.error} {m.time_ms:.4f} ms, {m.power_w:.0f} W",
        )
