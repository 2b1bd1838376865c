"""What is held out of which table: the lines of the table of predictors.

Another ``draw`` holds out other values, where values are drawn.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from neusight import convert
from vidur import read_profiles

from foretune.datasets import import_runs, read_runs
from foretune.datasets.importers.aiconfigurator import installed_tables
from foretune.datasets.runs import with_specs
from foretune.datasets.schema import columns_of
from foretune.device import canonical_name
from foretune.models.splits import group_numbers
from foretune.models.target_names import Target

H100, RTX, B60 = (
    "NVIDIA H100 80GB HBM3",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "Intel Arc Pro B60",
)
KNOWN_SYSTEMS = ("a100_sxm", "h100_sxm", "l40s")
SHARE = 0.2
FEW_PROBLEMS = (4, 8, 16, 32)
FEW_DRAWS = 3
TESTED_PROBLEMS = 300
POWER_DRAWS = 6
OTHERS = {
    "gdn": "tokens",
    "context_mla": "seq_len",
    "generation_mla": "kv_len",
    "mla_bmm": "tokens",
    "encoder_attention": "seq_len",
    "scale_matrix": "M",
    "wideep_deepep_normal": "tokens",
}
RANDOM: tuple[tuple[str, str, Target], ...] = (
    ("gemm", "GEMM, H100,", "time_ms"),
    ("context_attention", "attention prefill, H100,", "time_ms"),
    ("generation_attention", "attention decode, H100,", "time_ms"),
    ("power_h200_gemm", "power, GEMM, H200,", "power_w"),
)
ELEMENTWISE = ("add", "mul", "gelu", "relu", "div", "pow", "tanh")
MODEL = ["problem.hidden", "problem.intermediate", "problem.top_k", "problem.experts"]


@dataclass(frozen=True)
class Task:
    """One line of the table: ``runs`` with the rows in ``test`` held out."""

    name: str
    runs: pd.DataFrame
    test: np.ndarray
    target: Target = "time_ms"
    few: Mapping[int, int] = field(default_factory=dict)
    """Number of runs of a new device to calibrate with -> number of draws."""


def thinned(task: Task, rows: int, seed: int = 0) -> Task:
    """Return the task with at most ``rows`` random training rows and half as many test rows."""
    rng = np.random.default_rng(seed)

    def draw(is_used: np.ndarray, max_rows: int) -> np.ndarray:
        used = np.flatnonzero(is_used)
        return rng.choice(used, max_rows, replace=False) if len(used) > max_rows else used

    training = draw(~task.test, rows)
    test = draw(task.test, rows // 2)
    kept = np.sort(np.concatenate([training, test]))
    return replace(task, runs=without_unused_texts(task.runs.iloc[kept]), test=task.test[kept])


def held_out(runs: pd.DataFrame, columns: list[str], seed: int = 0) -> np.ndarray:
    """Return the rows of a fifth of the combinations of ``columns``."""
    number = runs.groupby(columns, observed=True, dropna=False).ngroup().to_numpy()
    n_distinct = int(number.max()) + 1
    n_held_out = max(1, round(SHARE * n_distinct))
    drawn = np.random.default_rng(seed).choice(n_distinct, n_held_out, replace=False)
    return np.isin(number, drawn)


def operators(data: Path, name: str, **only: str) -> pd.DataFrame:
    """Return a table of LLM operators, rows where ``device`` and ``backend`` are as given."""
    runs = import_runs(data / "llm" / f"{name}.parquet", "aiconfigurator").runs
    if "device" in only:
        runs = runs[runs["device"] == only["device"]]
    if "backend" in only:
        runs = runs[runs["config.backend"] == only["backend"]]
    return without_unused_texts(runs)


def without_unused_texts(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with a new index, and only the categories that occur."""
    runs = runs.reset_index(drop=True)
    texts = runs.select_dtypes("category").columns
    return runs.assign(**{c: runs[c].cat.remove_unused_categories() for c in texts})


def gemm(data: Path, draw: int = 0) -> Iterator[Task]:
    """GEMM on one known device."""
    runs = operators(data, "gemm", device=H100, backend="trtllm")
    yield Task("GEMM (n, k), H100", runs, held_out(runs, ["problem.N", "problem.K"], draw))
    yield Task("GEMM m, H100", runs, held_out(runs, ["problem.M"], draw))
    beyond = (runs["problem.N"] >= 16384) | (runs["problem.K"] >= 16384)
    yield Task("GEMM n or k ≥ 16384, H100", runs, beyond.to_numpy())


def devices(data: Path, draw: int = 0) -> Iterator[Task]:
    """GEMM on devices never seen."""
    runs = operators(data, "gemm")
    formats = runs["config.format"].isin(["bf16", "fp8", "fp8_block"])
    ours = (
        (runs["config.backend"] == "trtllm")
        | runs["device"].isin([B60])
        | (runs["device"].astype(str).str.contains("A100") & (runs["config.backend"] == "sglang"))
    )
    runs = runs[formats & ours].reset_index(drop=True)
    known = ~runs["device"].isin([RTX, B60])
    for device, name in ((RTX, "RTX PRO 6000"), (B60, "Arc B60")):
        part = runs[known | (runs["device"] == device)].reset_index(drop=True)
        test = (part["device"] == device).to_numpy()
        few = {10: 10, 64: 10, 512: 3}
        yield Task(f"GEMM, device {name} (from A100, H100, L40S)", part, test, few=few)


def installed(data: Path, draw: int = 0) -> Iterator[Task]:
    """Operators on devices never seen, of the tables that aiconfigurator-core installs."""
    if installed_tables() is None:
        print("skipped: needs aiconfigurator-core (the extra llm)", file=sys.stderr)
        return
    few = {64: 3, 512: 3}
    plain = ["bf16", "fp8", "fp8_block"]
    for what, kernel, formats, system in (
        ("GEMM", "gemm", plain, "h200_sxm"),
        ("GEMM", "gemm", plain, "b200_sxm"),
        ("attention prefill", "attention_prefill", ["bf16", "fp8"], "h200_sxm"),
        ("attention prefill", "attention_prefill", ["bf16", "fp8"], "b200_sxm"),
        ("attention decode", "attention_decode", ["bf16"], "h200_sxm"),
        ("attention decode", "attention_decode", ["bf16"], "b200_sxm"),
        ("MoE", "moe", plain, "h200_sxm"),
    ):
        parts = [installed_table(name, kernel, formats) for name in (*KNOWN_SYSTEMS, system)]
        runs, test = before_and_new(parts)
        name = system.partition("_")[0].upper()
        yield Task(f"{what}, device {name} (from A100, H100, L40S)", runs, test, few=few)
    every = [*plain, "nvfp4"]
    systems = (*KNOWN_SYSTEMS, "rtx_pro_6000_server")
    parts = [installed_table(name, "gemm", every) for name in systems]
    runs, test = before_and_new([*parts, installed_table("b200_sxm", "gemm", ["nvfp4"])])
    name = "GEMM nvfp4, device B200 (from A100, H100, L40S, RTX PRO 6000)"
    yield Task(name, runs, test, few=few)


def installed_table(system: str, kernel: str, formats: list[str]) -> pd.DataFrame:
    """Return one operator on one system, in some formats, as one version of one library ran it."""
    runs = import_runs(system, "aiconfigurator", kernel=kernel).runs
    library = "sglang" if system == "a100_sxm" and kernel == "gemm" else "trtllm"
    runs = runs[runs["config.format"].isin(formats) & (runs["config.backend"] == library)]
    return runs[runs["environment"] == runs["environment"].mode()[0]]  # versions differ tenfold


def before_and_new(parts: list[pd.DataFrame]) -> tuple[pd.DataFrame, np.ndarray]:
    """Return all rows, and which are of the last part: a device that was never seen."""
    runs = without_unused_texts(pd.concat(parts, ignore_index=True))
    return runs, np.arange(len(runs)) >= len(runs) - len(parts[-1])


def attention(data: Path, draw: int = 0) -> Iterator[Task]:
    """Attention on one known device."""
    runs = operators(data, "context_attention", device=H100, backend="trtllm")
    heads = ["problem.heads", "problem.kv_heads", "problem.head_dim"]
    yield Task("attention prefill, heads, H100", runs, held_out(runs, heads, draw))
    runs = operators(data, "generation_attention", device=H100, backend="trtllm")
    yield Task("attention decode, KV length, H100", runs, held_out(runs, ["problem.kv_len"], draw))


def moe(data: Path, draw: int = 0) -> Iterator[Task]:
    """Mixtures of experts on one known device."""
    runs = operators(data, "moe", device=H100, backend="trtllm")
    yield Task("MoE tokens, H100", runs, held_out(runs, ["problem.tokens"], draw))
    for seed in range(2):
        yield Task(f"MoE models, H100 (draw {seed + 1})", runs, held_out(runs, MODEL, seed))


def collectives(data: Path, draw: int = 0) -> Iterator[Task]:
    """All-reduce."""
    tables = [operators(data, name) for name in ("custom_allreduce", "nccl")]
    runs = pd.concat(tables, ignore_index=True)
    runs = runs[runs["kernel"] == "all_reduce"].reset_index(drop=True)
    sizes = ["problem.message_bytes"]
    for seed in range(2):
        one = runs[runs["device"] == H100].reset_index(drop=True)
        yield Task(f"all-reduce sizes, H100 (draw {seed + 1})", one, held_out(one, sizes, seed))
    yield Task("all-reduce sizes, four devices", runs, held_out(runs, sizes, draw))


def power(data: Path, draw: int = 0) -> Iterator[Task]:
    """Mean watts on one known device."""
    runs = operators(data, "power_h200_gemm")
    shape = ["problem.N", "problem.K"]
    yield Task("power, GEMM (n, k), H200", runs, held_out(runs, shape, draw), "power_w")
    runs = operators(data, "power_h200_moe")
    test = held_out(runs, ["problem.tokens"], draw)
    yield Task("power, MoE tokens, H200", runs, test, "power_w")
    runs = operators(data, "power_h200_context_attention")
    heads = ["problem.heads", "problem.kv_heads", "problem.head_dim"]
    yield Task("power, prefill heads, H200", runs, held_out(runs, heads, draw), "power_w")


def power_elsewhere(data: Path, draw: int = 0) -> Iterator[Task]:
    """Mean watts on a device never seen: only its descriptor is known, then a few runs there.

    Of three operators in vLLM, the H200's from DATA, the B200's from aiconfigurator-core. How power
    is learned and calibrated was chosen on the mixtures of experts.
    """
    if (installed := installed_tables()) is None:
        print("skipped: needs aiconfigurator-core (the extra llm)", file=sys.stderr)
        return
    for what, operation, folder in (
        ("MoE", "moe", "moe"),
        ("attention prefill", "context_attention", "attention"),
        ("attention decode", "generation_attention", "attention"),
    ):
        path = installed / "b200_sxm" / folder / "vllm" / "0.22.0" / f"{operation}_perf.parquet"
        new = import_runs(path, "aiconfigurator").runs.assign(time_ms=np.nan)
        parts = [operators(data, f"power_h200_{operation}"), new]
        for known, there in (("H200", "B200"), ("B200", "H200")):
            runs, test = before_and_new(parts if there == "B200" else parts[::-1])
            name = f"power, {what}, device {there} (from {known})"
            yield Task(name, runs, test, "power_w", few={64: 3, 512: 3})


def power_few(data: Path, draw: int = 0) -> Iterator[Task]:
    """Mean watts where few matrix products are known: 1,200 rows of few shapes, or 36 products."""
    runs = operators(data, "power_h200_gemm")
    for what, columns, known, tested, rows in (
        ("1,200 rows of 12 shapes", ["problem.N", "problem.K"], 12, 24, 1200),
        ("36 products", ["problem.M", "problem.N", "problem.K"], 36, 2000, 100),
    ):
        group = runs.groupby(columns, observed=True).ngroup().to_numpy()
        for seed in range(draw, draw + POWER_DRAWS):
            rng = np.random.default_rng(seed)
            order = rng.permutation(int(group.max()) + 1)
            train = np.flatnonzero(np.isin(group, order[:known]))
            test = np.flatnonzero(np.isin(group, order[known : known + tested]))
            some = np.concatenate([rng.permutation(train)[:rows], test])
            new = np.isin(some, test)
            name = f"power, GEMM, H200: {what} (draw {seed + 1})"
            yield Task(name, without_unused_texts(runs.iloc[some]), new, "power_w")


def spaces(data: Path, draw: int = 0) -> Iterator[Task]:
    """Tuning spaces: a tenth of the configurations known."""
    for path in sorted((data / "spaces").glob("*.parquet")):
        runs = read_runs(path)
        runs = runs.drop(columns=[c for c in runs if c.startswith(("static.", "counter."))])
        rng = np.random.default_rng(draw)
        yield Task(f"space {path.stem}", runs, rng.random(len(runs)) >= 0.1)


def vidur(data: Path, draw: int = 0) -> Iterator[Task]:
    """Whole models held out of Vidur's MLP profiles."""
    runs = read_profiles(data / "llm" / "vidur_mlp.parquet")
    for kernel in ("gemm", "norm", "elementwise"):
        rows = runs[runs["kernel"] == kernel].reset_index(drop=True).dropna(axis=1, how="all")
        for models in (["CodeLlama-34b"], ["Llama-2-70b", "Llama-3-70B"]):
            test = rows["source"].astype(str).str.contains("|".join(models)).to_numpy()
            yield Task(f"Vidur {kernel}, {' and '.join(models)}", rows, test)


def others(data: Path, draw: int = 0) -> Iterator[Task]:
    """Operators of which no more is known than their columns, or little."""
    for name, size in OTHERS.items():
        runs = operators(data, name, device=H100)
        yield Task(f"{name} {size}, H100", runs, held_out(runs, [f"problem.{size}"], draw))


def elsewhere(data: Path, draw: int = 0) -> Iterator[Task]:
    """Operators with small tables on an unmeasured device: a quick check."""
    for name in ("custom_allreduce", "nccl", "scale_matrix", "mla_bmm", "context_mla"):
        runs = operators(data, name)
        runs = runs[~runs["device"].isin([B60])].reset_index(drop=True)
        test = (runs["device"] == RTX).to_numpy()
        yield Task(f"{name}, device RTX PRO 6000 (from the others)", runs, test)


def random_rows(data: Path, draw: int = 0) -> Iterator[Task]:
    """Single rows held out: what most of the literature reports, and what a table allows at all."""
    for name, what, target in RANDOM:
        only = {} if name.startswith("power") else {"device": H100, "backend": "trtllm"}
        runs = operators(data, name, **only)
        out = np.random.default_rng(draw).random(len(runs)) < SHARE
        yield Task(f"{what} random rows", runs, out, target)


def few_problems(data: Path, draw: int = 0) -> Iterator[Task]:
    """Kernels of Triton templates, all configurations of few problems known."""
    for name, only_16_bits in (
        ("mm__A100", True),
        ("mm__A100", False),
        ("mixed_mm__A100", False),
        ("flex_attention__H100", False),
    ):
        runs = with_specs(read_runs(data / "triton" / f"{name}.parquet"))
        runs = runs[runs["status"] == "ok"].reset_index(drop=True)
        if only_16_bits:
            runs = runs[runs["problem.mat1_dtype"] != "float32"].reset_index(drop=True)
        problem = group_numbers(runs, "problem")
        for known in FEW_PROBLEMS:
            for seed in range(draw, draw + FEW_DRAWS):
                order = np.random.default_rng(seed).permutation(int(problem.max()) + 1)
                some = np.isin(problem, order[: known + TESTED_PROBLEMS])
                test = ~np.isin(problem[some], order[:known])
                what = f"{name.replace('__', ', ')}{', 16 bits' if only_16_bits else ''}"
                title = f"{what}: {known} problems (draw {seed + 1})"
                yield Task(title, without_unused_texts(runs[some]), test)


def libraries(data: Path, draw: int = 0) -> Iterator[Task]:
    """What AMD's libraries chose or could choose: solvers of convolutions, tuned products."""
    runs = with_specs(read_runs(data / "amd" / "convolution_miopen.parquet"))
    problem = group_numbers(runs, "problem")
    order = np.random.default_rng(draw).permutation(int(problem.max()) + 1)
    for name, share in (("a sixth", 0.15), ("all", 0.8)):
        known = order[: round(share * len(order))]
        out = order[round((1.0 - SHARE) * len(order)) :]
        some = np.isin(problem, np.concatenate([known, out]))
        yield Task(f"MIOpen, problems ({name} known)", runs[some], np.isin(problem[some], out))
    few = {64: 3, 512: 3}
    device = (runs["device"] == "AMD Instinct MI100").to_numpy()
    yield Task("MIOpen, device MI100 (from MI210, MI250X)", runs, device, few=few)
    runs = with_specs(read_runs(data / "amd" / "gemm_aiter.parquet"))
    out = held_out(runs, ["problem.N", "problem.K"], draw)
    yield Task("aiter GEMM (n, k)", runs, out)


def neusight(data: Path, draw: int = 0) -> Iterator[Task]:
    """Operators of NeuSight's training set: shapes held out on three known GPUs, then one GPU.

    Also products with more operations than three quarters of the others: the law must carry them.
    """
    for names in (("linear",), ("bmm",), ELEMENTWISE, ("softmax",), ("ln",)):
        runs = convert([data / "neusight" / f"{name}.parquet" for name in names]).runs
        runs = runs.drop(columns=columns_of(runs, "static"))
        sizes = [c for c in columns_of(runs, "problem") if c != "problem.op"]
        what = names[0] if len(names) == 1 else "elementwise"
        yield Task(f"NeuSight {what}, shapes", runs, held_out(runs, sizes, draw))
        if what == "linear":
            work = runs[["problem.M", "problem.N", "problem.K"]].prod(axis=1)
            far = (work > work.quantile(0.75)).to_numpy()
            yield Task("NeuSight linear, the largest quarter", runs, far)
        there = (runs["device"] == "Tesla T4").to_numpy()
        yield Task(f"NeuSight {what}, device T4 (from P100, A100)", runs, there)


def gpperf(data: Path, draw: int = 0) -> Iterator[Task]:
    """GPPerf's sweep of CUTLASS on an RTX 4070: a quarter of 18 shapes held out."""
    sweep = pd.read_parquet(data / "gpperf" / "sweep.parquet").reset_index(drop=True)
    runs = pd.DataFrame(
        {
            "kernel": "gemm",
            "device": canonical_name("NVIDIA GeForce RTX 4070"),
            "status": "ok",
            "problem.M": sweep["m"],
            "problem.N": sweep["n"],
            "problem.K": sweep["k"],
            "config.format": "fp32",
            "config.kernel": sweep["kernel"],
            "config.layout": sweep["Layout"],
            "config.stages": sweep["stages"],
            "config.alpha": sweep["alpha"],
            "config.beta": sweep["beta"],
            "time_ms": sweep["runtime"],
        }
    )
    runs = with_specs(runs)
    shape = group_numbers(runs, "problem")
    for seed in range(draw, draw + 3):
        order = np.random.default_rng(seed).permutation(int(shape.max()) + 1)
        out = np.isin(shape, order[: round(0.25 * len(order))])
        yield Task(f"GPPerf's sweep, shapes (draw {seed + 1})", runs, out)
    out = np.random.default_rng(draw).random(len(runs)) < SHARE
    yield Task("GPPerf's sweep, random rows", runs, out)


def beyond(data: Path, draw: int = 0) -> Iterator[Task]:
    """Products with more rows than any known one: 2, 4 and 6 octaves."""
    runs = operators(data, "gemm", device=H100, backend="trtllm")
    m = runs["problem.M"]
    for octaves in (2, 4, 6):
        top = m.max() / 2.0**octaves
        some = (m <= top) | (m > m.max() / 2)
        part = without_unused_texts(runs[some])
        far = (part["problem.M"] > m.max() / 2).to_numpy()
        yield Task(f"GEMM, M beyond by {octaves} octaves, H100", part, far)


GROUPS: dict[str, Callable[[Path, int], Iterator[Task]]] = {
    "gemm": gemm,
    "devices": devices,
    "installed": installed,
    "attention": attention,
    "moe": moe,
    "collectives": collectives,
    "power": power,
    "power-elsewhere": power_elsewhere,
    "power-few": power_few,
    "vidur": vidur,
    "spaces": spaces,
    "others": others,
    "elsewhere": elsewhere,
    "random": random_rows,
    "few": few_problems,
    "libraries": libraries,
    "neusight": neusight,
    "gpperf": gpperf,
    "beyond": beyond,
}
