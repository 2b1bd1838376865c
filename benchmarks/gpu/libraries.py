"""Kernels of other people's libraries on a GPU: stock Triton's tuning, and `foretune.patch_triton`.

One process calls the functions of flash-linear-attention (``fla-core``), Liger (``liger-kernel``),
FlagGems (``flag-gems``) and Unsloth (its grouped GEMM) as they are. Stock Triton measures every
configuration. A second process does the same calls with Triton patched before the libraries are
imported, starting from an empty store. Later problems of a kernel come after the first and can
learn from it. Inputs are equal, by seed.

    python benchmarks/gpu/libraries.py --minutes 1.25 --out libraries.jsonl
    python benchmarks/gpu/libraries.py --compile-only    # no GPU: fills Triton's cache of programs
    python benchmarks/gpu/libraries.py --minutes 0 --out libraries.jsonl    # prints a file

Printed are, per problem: configurations on the list, those that Foretune measured, the share of the
best performance that its choice keeps (both times from stock's own measurements, so noise lowers
it), the seconds until the first call returned, and whether the results agree. Programs that are in
Triton's cache are not compiled: without ``--compile-only`` before, seconds have compilation in
them. Foretune's first call of all also imports what Foretune needs. A library that is not installed
is left out, and said.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton

HERE = Path(__file__).resolve()
sys.path += [str(HERE.parents[1]), str(HERE.parents[2] / "tests" / "replay_gpu")]

DEVICE = "NVIDIA H100 80GB HBM3"
"""What `--compile-only` compiles for."""
SAMPLED = 1 << 18
"""Elements of each result that are compared, evenly spaced."""
BARS = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Largest relative error (2-norm) between results of two configurations that counts as equal."""
BROKEN = 3
"""Exit status of a process whose device no longer answers."""

Outputs = tuple[torch.Tensor, ...]
Sizes = dict[str, int]


@dataclass(frozen=True)
class Case:
    """A kernel of a library.

    Attributes:
        library: its name.
        module: where the kernel is.
        kernel: the decorated kernel's name there.
        problems: sizes, in the order in which they are met.
        prepare: from the kernel's module, sizes and a maker of inputs to a call of the library's
            function, which returns its results.
    """

    library: str
    module: str
    kernel: str
    problems: list[Sizes]
    prepare: Callable[[Any, Sizes, "Inputs"], Callable[[], Outputs]]


class Inputs:
    """Makes inputs: by seed on a GPU, and without contents where nothing is launched."""

    def __init__(self, replayed: bool) -> None:
        self.replayed = replayed
        self.device = "cpu" if replayed else "cuda"
        self._generator = None if replayed else torch.Generator("cuda").manual_seed(0)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Return standard normal numbers."""
        if self.replayed:
            return torch.empty(shape, dtype=dtype)
        made = torch.randn(shape, generator=self._generator, device="cuda", dtype=torch.float32)
        return made.to(dtype)

    def counts(self, total: int, parts: int) -> list[int]:
        """Return how many of ``total`` go to each part: unequal, none empty, the same each time."""
        weights = [1 + (7 * i) % 5 for i in range(parts)]
        counts = [total * w // sum(weights) for w in weights]
        counts[-1] += total - sum(counts)
        return counts

    def integers(self, values: list[int]) -> torch.Tensor:
        """Return 32-bit integers."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)


# Calls of the libraries' functions


def _gated_norm(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x, gate = inputs.normal(p["T"], p["D"]), inputs.normal(p["T"], p["D"])
    weight = inputs.normal(p["D"])

    def call() -> Outputs:
        y, _, rstd, _ = module.layer_norm_gated_fwd(x, gate, weight, None, is_rms_norm=True)
        return y, rstd

    return call


def _l2norm(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x = inputs.normal(p["T"], p["D"])
    return lambda: module.l2norm_fwd(x)


def _recompute_w_u(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    size = (p["B"], p["T"], p["H"])
    k, v = inputs.normal(*size, p["K"]), inputs.normal(*size, p["V"])
    beta, a = inputs.normal(*size), inputs.normal(*size, 64)
    return lambda: module.recompute_w_u_fwd(k, v, beta, a)


def _gla_output(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    b, t, h, k, v = (p[name] for name in "BTHKV")
    q, values = inputs.normal(b, t, h, k), inputs.normal(b, t, h, v)
    gate = -0.1 * inputs.normal(b, t, h, k, dtype=torch.float32).abs()
    scores = inputs.normal(b, t, h, 64)
    states = inputs.normal(b, triton.cdiv(t, 64), h, k, v)
    scale = k**-0.5
    return lambda: (module.chunk_gla_fwd_o_gk(q, values, gate, scores, states, scale),)


def _dyt(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x, gamma, beta = inputs.normal(p["M"], p["N"]), inputs.normal(p["N"]), inputs.normal(p["N"])
    alpha = inputs.normal(1)
    return lambda: (module.liger_dyt_fwd(x, alpha, gamma, beta),)


def _moe_up(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    """Launch Liger's first product of a mixture of experts, as its `LigerFusedMoEFunction` does."""
    rows, hidden, inner, experts, edge = p["rows"], p["H"], p["I"], p["E"], 64
    x, weights = inputs.normal(rows, hidden), inputs.normal(experts, 2 * inner, hidden)
    weights *= hidden**-0.5
    starts, owners = [0], list[int]()
    tiles = list[int]()
    for expert, count in enumerate(inputs.counts(rows, experts)):
        first = range(starts[-1], starts[-1] + count, edge)
        tiles += first
        owners += [expert] * len(first)
        starts.append(starts[-1] + count)
    order = inputs.integers([(i * 5) % rows for i in range(rows)])  # 5 and a power of two: all
    start, tile, owner = map(inputs.integers, (starts, tiles, owners))
    before = torch.empty(rows, 2 * inner, dtype=x.dtype, device=x.device)
    after = torch.empty(rows, inner, dtype=x.dtype, device=x.device)

    def call() -> Outputs:
        module._fused_up_proj_swiglu_kernel[
            lambda meta: (len(tiles), triton.cdiv(inner, meta["BLOCK_N"]))
        ](
            x, weights, order, start, tile, owner, before, after, H_dim=hidden, I_dim=inner,
            stride_x_T=x.stride(0), stride_x_H=x.stride(1), stride_w_E=weights.stride(0),
            stride_w_N=weights.stride(1), stride_w_K=weights.stride(2),
            stride_pre_TK=before.stride(0), stride_pre_N=before.stride(1),
            stride_post_TK=after.stride(0), stride_post_N=after.stride(1), BLOCK_M=edge,
        )  # fmt: skip
        return before, after

    return call


def _gems_rms_norm(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x, weight = inputs.normal(p["M"], p["N"]), inputs.normal(p["N"])
    return lambda: module.rms_norm_forward(x, (p["N"],), weight)


def _gems_layer_norm(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    x, weight, bias = inputs.normal(p["M"], p["N"]), inputs.normal(p["N"]), inputs.normal(p["N"])
    return lambda: module.layer_norm(x, (p["N"],), weight, bias)


def _gems_softmax_backward(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    y, gradient = inputs.normal(p["M"], p["N"]), inputs.normal(p["M"], p["N"])
    if not inputs.replayed:
        y = torch.softmax(y.float(), 1).to(y.dtype)
    return lambda: (module.softmax_backward(gradient, y, 1, y.dtype),)


def _unsloth_forward(module: Any, p: Sizes, inputs: Inputs) -> Callable[[], Outputs]:
    """Launch Unsloth's grouped GEMM as its `grouped_gemm_forward` does with ``autotune=True``."""
    x, weights = inputs.normal(p["rows"], p["K"]), inputs.normal(p["E"] * p["N"], p["K"])
    weights *= p["K"] ** -0.5
    sizes = inputs.integers(inputs.counts(p["rows"], p["E"]))
    y = torch.empty(p["rows"], p["N"], dtype=x.dtype, device=x.device)
    cores = torch.cuda.get_device_properties(0).multi_processor_count

    def call() -> Outputs:
        module._autotuned_grouped_gemm_forward_kernel[lambda meta: (cores,)](
            x_ptr=x, w_ptr=weights, m_sizes_ptr=sizes, gather_indices_ptr=None,
            topk_weights_ptr=None, y_ptr=y, NUM_TOKENS=p["rows"], NUM_EXPERTS=p["E"], TOPK=1,
            N=p["N"], K=p["K"], NUM_SMS=cores, PERMUTE_X=False, PERMUTE_Y=False,
            FUSE_MUL_POST=False, FLATTEN=True, enable_fp_fusion=True,
        )  # fmt: skip
        return (y,)

    return call


CASES = [
    Case("fla", "fla.modules.norm.fused_norm_gate", "layer_norm_gated_fwd_kernel",
         [{"T": 65536, "D": 128}, {"T": 32768, "D": 256}, {"T": 65536, "D": 64}], _gated_norm),
    Case("liger", "liger_kernel.ops.dyt", "_dyt_fwd_kernel",
         [{"M": 4096, "N": 4096}, {"M": 4096, "N": 8192}], _dyt),
    Case("flag_gems", "flag_gems.ops.rms_norm", "rms_norm_loop_kernel",
         [{"M": 4096, "N": 8192}, {"M": 2048, "N": 5120}], _gems_rms_norm),
    Case("fla", "fla.ops.gated_delta_rule.wy_fast", "recompute_w_u_fwd_kernel",
         [{"B": 2, "T": 4096, "H": 16, "K": 128, "V": 128},
          {"B": 2, "T": 4096, "H": 8, "K": 128, "V": 256},
          {"B": 2, "T": 4096, "H": 16, "K": 64, "V": 64}], _recompute_w_u),
    Case("flag_gems", "flag_gems.ops.softmax", "softmax_backward_kernel_inner",
         [{"M": 4096, "N": 2048}, {"M": 2048, "N": 8192}, {"M": 16384, "N": 1024}],
         _gems_softmax_backward),
    Case("liger", "liger_kernel.ops.fused_moe_kernels", "_fused_up_proj_swiglu_kernel",
         [{"rows": 2048, "H": 2048, "I": 1024, "E": 8},
          {"rows": 4096, "H": 1024, "I": 2048, "E": 16}], _moe_up),
    Case("unsloth", "unsloth.kernels.moe.grouped_gemm.interface",
         "_autotuned_grouped_gemm_forward_kernel",
         [{"rows": 4096, "K": 2048, "N": 1536, "E": 8}], _unsloth_forward),
    Case("fla", "fla.ops.gla.chunk", "chunk_gla_fwd_kernel_o",
         [{"B": 2, "T": 4096, "H": 8, "K": 128, "V": 256},
          {"B": 4, "T": 2048, "H": 16, "K": 64, "V": 128}], _gla_output),
    Case("flag_gems", "flag_gems.ops.layernorm", "layer_norm_loop_kernel",
         [{"M": 4096, "N": 8192}, {"M": 2048, "N": 12288}], _gems_layer_norm),
    Case("fla", "fla.modules.norm.l2norm", "l2norm_fwd_kernel",
         [{"T": 65536, "D": 128}, {"T": 65536, "D": 64}], _l2norm),
]  # fmt: skip
"""In this order, so that an early stop leaves something of each library."""
LIBRARIES = ("fla", "liger", "flag_gems", "unsloth")
PACKAGES = ("fla-core", "liger-kernel", "flag-gems", "unsloth")
MADE_UP = "made-up times"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.25, help="begin nothing new after them")
    parser.add_argument("--out", type=Path, default=Path("gpu-libraries.jsonl"))
    parser.add_argument("--libraries", nargs="*", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--kernels", nargs="*", help="only kernels with one of these in their name")
    parser.add_argument("--compile-only", action="store_true", help="no GPU: made-up times")
    parser.add_argument("--side", choices=("stock", "foretune"), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.side:
        side(options)
        return
    before = 0
    if options.minutes <= 0 and not options.out.exists():
        raise SystemExit(f"there is no file {options.out}")
    if options.minutes > 0:
        if not options.compile_only and not torch.cuda.is_available():
            raise SystemExit("no GPU here: --compile-only shows that the benchmark runs")
        before = len(read(options.out))
        run(options)
    print(report(read(options.out)[before:]))


def run(options: argparse.Namespace) -> None:
    """Run the sides in processes of their own."""
    begin = time.time()
    end = begin + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        options.work = Path(folder)
        # Foretune's process imports while stock's measures, and waits for its turn.
        with Side(options, "stock", begin + 0.68 * (end - begin)) as stock:
            stock.go()
            waiting = None if options.compile_only else Side(options, "foretune", end)
            stock.wait(begin + 0.75 * (end - begin))
        with waiting or Side(options, "foretune", end) as ours:
            ours.go()
            ours.wait(end + 5)


def report(rows: list[dict[str, Any]]) -> str:
    """Return the table, and what was noted."""
    where = next((f"{r['device']}; {r['versions']}" for r in rows if "device" in r), MADE_UP)
    lines = ["### Kernels of libraries under patch_triton", "", where, "", table(rows)]
    for row in rows:
        if "note" in row or "error" in row:
            said = row.get("note") or row["error"]
            name = " ".join(str(row[n]) for n in ("library", "kernel") if n in row)
            lines.append(f"- {row['side']}: {name}: {said.splitlines()[-1][:200]}")
    return "\n".join(lines)


class Side:
    """A process that makes the calls, started again if it breaks the device."""

    def __init__(self, options: argparse.Namespace, name: str, until: float) -> None:
        self.command = [
            sys.executable, str(HERE), "--side", name, "--out", str(options.out.resolve()),
            "--work", str(options.work), "--until", str(until), "--libraries", *options.libraries,
        ]  # fmt: skip
        if options.kernels:
            self.command += ["--kernels", *options.kernels]
        if options.compile_only:
            self.command += ["--compile-only"]
        self.until, self.patient, self.work = until, options.compile_only, options.work
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        environment = {
            **os.environ,
            "FLA_CACHE_RESULTS": "0",  # else results lie in the cache of programs
            "FORETUNE_STORE": str(self.work / "store.db"),
            "GEMS_VENDOR": "nvidia",  # else FlagGems runs commands to find out
        }
        return subprocess.Popen(
            self.command, stdin=subprocess.PIPE, text=True, env=environment,
            stdout=sys.stderr.fileno(),
        )  # fmt: skip

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def wait(self, latest: float) -> None:
        """Wait until it is done, starting it again where it broke the device, or end it."""
        for _ in range(4):
            try:
                left = None if self.patient else max(latest - time.time(), 1)
                status = self.process.wait(timeout=left)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                return
            if (status >= 0 and status != BROKEN) or time.time() > self.until:
                return
            self.process = self._start()
            self.go()

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def side(options: argparse.Namespace) -> None:
    """Make the calls of one side, in a process of its own."""
    note = Log(options)
    with replayed() if options.compile_only else contextlib.nullcontext():
        modules = load_patched(options, note) if options.side == "foretune" else load(options, note)
        if not sys.stdin.readline():
            return
        if not options.compile_only:
            from foretune.collect.versions import versions

            note(device=torch.cuda.get_device_name(), versions=f"{versions()}, {packages()}")
        known = stock_rows(options) if options.side == "foretune" else None
        done = {key_of(row) for row in note.written() if "problem" in row}
        for case, module in modules:
            for index, problem in enumerate(case.problems):
                key = (case.kernel, json.dumps(problem))
                if key in done or (known is not None and key not in known):
                    continue
                if time.time() > options.until and not options.compile_only:
                    return
                note.begin(library=case.library, kernel=case.kernel, problem=problem)
                try:
                    stock = known[key] if known is not None else None
                    note.end(**measure(case, module, index, options, stock))
                except Exception as error:
                    traceback.print_exc()
                    note.end(error=f"{type(error).__name__}: {error}")
                    if not answers(options):
                        sys.exit(BROKEN)


def packages() -> str:
    """Return the versions of the libraries."""
    names = [d.name for d in distributions() if d.name.replace("_", "-") in PACKAGES]
    return ", ".join(f"{name} {version(name)}" for name in sorted(set(names)))


def load_patched(options: argparse.Namespace, note: "Log") -> list[tuple[Case, Any]]:
    """Patch Triton, then import the cases' modules."""
    import foretune

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is not reached is noted
        patch = foretune.patch_triton()
        modules = load(options, note)
    for name, why in patch.unreached.items():
        note(kernel=name, note=f"tuned by Triton: it {why}")
    return modules


class Log:
    """Writes rows; one is written before a call, so that a call that ends the process is known."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.path: Path = options.out
        self.pending: Path = options.work / f"{options.side}-pending.json"
        self.mine: Path = options.work / f"{options.side}.jsonl"
        self.side: str = options.side
        if self.pending.exists():
            row = json.loads(self.pending.read_text())
            self._write({**row, "error": "the process ended"})
            self.pending.unlink()

    def __call__(self, **row: Any) -> None:
        """Write a row that is about no call."""
        self._write({"side": self.side, **row})

    def begin(self, **row: Any) -> None:
        """Say which call comes next."""
        self.row = {"side": self.side, **row}
        self.pending.write_text(json.dumps(self.row))

    def end(self, **row: Any) -> None:
        """Write what came of it."""
        self._write({**self.row, **row})
        self.pending.unlink()

    def written(self) -> list[dict[str, Any]]:
        """Return what this side has written in this run."""
        return read(self.mine)

    def _write(self, row: dict[str, Any]) -> None:
        for path in (self.path, self.mine):
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def load(options: argparse.Namespace, note: Log) -> list[tuple[Case, Any]]:
    """Import the cases' modules."""
    modules = []
    for case in CASES:
        wanted = options.kernels is None or any(n in case.kernel for n in options.kernels)
        if case.library not in options.libraries or not wanted:
            continue
        try:
            if case.library == "unsloth":
                stand_in_for_unsloth()
            modules.append((case, importlib.import_module(case.module)))
        except Exception as error:
            note(library=case.library, kernel=case.kernel,
                 note=f"not imported: {type(error).__name__}: {error}")  # fmt: skip
    return modules


def stand_in_for_unsloth() -> None:
    """Let Unsloth's grouped GEMM be imported alone: the package wants all of a training stack."""
    if "unsloth" in sys.modules:
        return
    found = importlib.util.find_spec("unsloth")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'unsloth'")
    root = next(iter(found.submodule_search_locations))
    parts: dict[str, dict[str, Any]] = {
        "unsloth": {"__path__": [root], "DEVICE_TYPE": "cuda"},
        "unsloth.device_type": {
            "cuda_visible_capabilities": lambda: [torch.cuda.get_device_capability(0)]
        },
        "unsloth.kernels": {"__path__": [str(Path(root) / "kernels")]},
        "unsloth.kernels.utils": {"torch_gpu_device": torch.cuda.device},
    }
    for name, values in parts.items():
        module = ModuleType(name)
        vars(module).update(values)
        sys.modules[name] = module


def measure(
    case: Case,
    module: Any,
    index: int,
    options: argparse.Namespace,
    stock: dict[str, Any] | None,
) -> dict[str, Any]:
    """Make a call for the first time; return what the tuner did."""
    call = case.prepare(module, case.problems[index], Inputs(options.compile_only))
    tuner = find_tuner(getattr(module, case.kernel))
    tuner.configs_timings = {}
    synchronize(options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin = time.perf_counter()
        outputs = call()
        synchronize(options)
        seconds = time.perf_counter() - begin
    chosen = name_of(tuner.best_config)
    times = {name_of(c): first(t) for c, t in (tuner.configs_timings or {}).items()}
    row: dict[str, Any] = {
        "index": index, "listed": len(tuner.configs), "measured": len(times), "chosen": chosen,
        "seconds": round(seconds, 4), "times": times,
        "tuner": f"{type(tuner).__module__}.{type(tuner).__name__}",
    }  # fmt: skip
    said = [str(w.message) for w in caught if "oretune" in w.category.__name__]
    if said:
        row["note"] = "; ".join(said)
    sample = [sampled(o) for o in outputs]
    path = options.work / f"{case.kernel}-{index}.pt"
    if options.side == "stock":
        torch.save(sample, path)
        return row
    from foretune.tune.triton.autotuner import Autotuner

    row["reached"] = isinstance(tuner, Autotuner)
    assert stock is not None
    ran = [t for t in stock["times"].values() if t is not None]
    mine = stock["times"].get(chosen)
    row["share"] = min(ran) / mine if ran and mine else None
    row |= {"stock_seconds": stock["seconds"], "configs": len(stock["times"])}
    if not options.compile_only:
        errors = [compared(*pair) for pair in zip(sample, torch.load(path), strict=True)]
        row["error_2norm"] = [e for e, _ in errors]
        row["equal"] = all(equal for _, equal in errors)
    return row


def find_tuner(kernel: Any) -> Any:
    """Return the autotuner in what decorates a kernel."""
    while not isinstance(kernel, triton.runtime.Autotuner):
        kernel = kernel.fn
    return kernel


def name_of(config: Any) -> str:
    """Return a configuration as text, the same in both processes."""
    values = {n: v for n, v in config.all_kwargs().items() if v is not None}
    return json.dumps(values, sort_keys=True, default=str)


def first(timing: Any) -> float | None:
    """Return the median of a timing; None where the configuration failed."""
    value = float(timing[0] if isinstance(timing, (list, tuple)) else timing)
    return value if math.isfinite(value) else None


def sampled(output: torch.Tensor) -> torch.Tensor:
    """Return some elements of a result, on the host, in its own type."""
    flat = output.detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLED)].cpu()


def compared(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float | None, bool]:
    """Return the relative error between two results, and whether they count as equal."""
    a, b = ours.double(), theirs.double()
    error = float((a - b).norm() / b.norm().clamp_min(1e-30))
    if not math.isfinite(error):
        return None, False
    return error, error <= BARS.get(ours.dtype, 0.0)


def synchronize(options: argparse.Namespace) -> None:
    """Wait for the device, if there is one."""
    if not options.compile_only:
        torch.cuda.synchronize()


def answers(options: argparse.Namespace) -> bool:
    """Return whether the device still works."""
    try:
        synchronize(options)
    except Exception:
        return False
    return True


@contextlib.contextmanager
def replayed() -> Iterator[None]:
    """Compile for `DEVICE`, launch nothing, and let libraries believe that it is there."""
    from replay_driver import ReplayDriver

    driver = ReplayDriver(made_up, device=DEVICE, compile=True)
    interface: Any = driver.device_interface
    names = ("get_device_name", "get_device_capability", "get_device_properties", "device_count")
    for name in names:
        setattr(torch.cuda, name, getattr(interface, name))
    told: dict[str, Any] = {
        "current_device": lambda: 0,
        "device": lambda index: contextlib.nullcontext(),
        "is_current_stream_capturing": interface.is_current_stream_capturing,
    }
    for name, value in told.items():
        setattr(torch.cuda, name, value)
    with driver.active():
        yield


def made_up(launch: Any) -> float:
    """Return a time without meaning, the same for the same configuration."""
    values = [v for v in launch.config.values() if isinstance(v, int)]
    return 0.05 + 0.01 * (sum(values) % 7)


def stock_rows(options: argparse.Namespace) -> dict[Any, dict[str, Any]]:
    """Return what stock's process measured, by kernel and problem."""
    rows = read(options.work / "stock.jsonl")
    return {key_of(row): row for row in rows if "times" in row}


def key_of(row: dict[str, Any]) -> tuple[str, str]:
    """Return kernel and problem of a row."""
    return row["kernel"], json.dumps(row["problem"])


def read(path: Path) -> list[dict[str, Any]]:
    """Return a file's rows."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line per problem that both sides did."""
    from machine import markdown

    lines = []
    for row in rows:
        if row["side"] != "foretune" or "seconds" not in row:
            continue
        share, equal = row.get("share"), row.get("equal")
        sizes = " ".join(f"{n}={v}" for n, v in row["problem"].items())
        lines.append([
            row["library"], row["kernel"], sizes, str(row.get("configs", "")),
            str(row["measured"]), "" if share is None else f"{share:.3f}",
            f"{row.get('stock_seconds', float('nan')):.2f}", f"{row['seconds']:.2f}",
            "" if equal is None else "yes" if equal else "no",
        ])  # fmt: skip
    columns = ["library", "kernel", "problem", "configs", "measured", "kept", "stock s",
               "Foretune s", "equal"]  # fmt: skip
    return str(markdown(columns, lines))


if __name__ == "__main__":
    main()
