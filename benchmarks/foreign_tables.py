"""Tables of timings as a stranger has them: raw columns, and a kernel of an unknown name.

Every table is of one operator on one device. The tables are in two halves: what is built into the
predictor is chosen on the first (`CHOSEN_ON`), and reported on the second (`REPORTED_ON`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets.plain_tables import plain_runs
from foretune.datasets.runs import with_specs
from foretune.device import canonical_name

KERNEL = "their_kernel"
"""The name of every kernel: no family has it."""
CHOSEN_ON = "chosen on"
REPORTED_ON = "reported on"
H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"


@dataclass(frozen=True)
class ForeignTable:
    """One table.

    Attributes:
        name: what it is of.
        half: `CHOSEN_ON` or `REPORTED_ON`.
        device: the device's name, which a stranger gives with ``--device``.
        rows: the raw columns, with ``time_ms``.
        sizes: the columns that describe the problem; the others are configuration.
    """

    name: str
    half: str
    device: str
    rows: pd.DataFrame
    sizes: tuple[str, ...]

    def runs(self) -> pd.DataFrame:
        """Return the rows as a run table, as ``foretune train FILE.csv --sizes …`` reads them."""
        runs = plain_runs(self.rows, self.sizes)
        return with_specs(runs.assign(kernel=KERNEL, device=canonical_name(self.device)))


@dataclass(frozen=True)
class Source:
    """Where a table's rows are.

    Attributes:
        half: `CHOSEN_ON` or `REPORTED_ON`.
        file: path below DATA, without its suffix.
        device: the device's name.
        time: an expression for milliseconds.
        sizes: columns of the problem.
        config: columns of the configuration.
        where: column -> the value that its rows have.
    """

    half: str
    file: str
    device: str
    time: str
    sizes: Sequence[str]
    config: Sequence[str] = ()
    where: tuple[tuple[str, object], ...] = ()


TRTLLM = (("system", "h100_sxm"), ("backend", "trtllm"))
VLLM = (("system", "h100_sxm"), ("backend", "vllm"))
ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
PRODUCT = ("problem.M", "problem.N", "problem.K")
TILE = ("config.BLOCK_M", "config.BLOCK_N", "config.BLOCK_K")
WARPS = ("config.num_stages", "config.num_warps")
NEUSIGHT_GPU = (("Device", "NVIDIA A100-PCIE-40GB"),)
VIDUR_GPU = (("device", "h100"), ("num_tensor_parallel_workers", 1))

SOURCES = {
    "NeuSight linear": Source(
        CHOSEN_ON, "neusight/linear", A100, "Latency", ("M", "N", "K"), (), NEUSIGHT_GPU
    ),
    "NeuSight softmax": Source(
        CHOSEN_ON, "neusight/softmax", A100, "Latency", ("B", "H"), (), NEUSIGHT_GPU
    ),
    "NeuSight add": Source(
        CHOSEN_ON, "neusight/add", A100, "Latency", ("B", "H"), (), NEUSIGHT_GPU
    ),
    "GPPerf's sweep": Source(
        CHOSEN_ON,
        "gpperf/sweep",
        "NVIDIA GeForce RTX 4070",
        "runtime",
        ("m", "n", "k"),
        ("kernel_name", "Layout", "blocksize1", "blocksize2", "alpha", "beta"),
    ),
    "attention decode": Source(
        CHOSEN_ON,
        "llm/generation_attention",
        H100,
        "latency",
        ("batch_size", "step", "num_heads", "num_key_value_heads", "head_dim"),
        ("kv_cache_dtype", "window_size"),
        TRTLLM,
    ),
    "NCCL": Source(
        CHOSEN_ON,
        "llm/nccl",
        H100,
        "latency",
        ("num_gpus", "message_size"),
        ("op_name", "nccl_dtype"),
        (("system", "h100_sxm"),),
    ),
    "delta net": Source(
        CHOSEN_ON,
        "llm/gdn",
        H100,
        "latency",
        ("batch_size", "seq_len", "num_tokens", "d_model", "num_k_heads", "num_v_heads"),
        ("kernel_source", "phase"),
        VLLM,
    ),
    "aiter, MI355X": Source(
        CHOSEN_ON,
        "amd/gemm_aiter",
        "AMD Instinct MI355X",
        "time_ms",
        PRODUCT,
        ("config.format", "config.variant", "config.out_dtype"),
        (("device", "AMD Instinct MI355X"),),
    ),
    "Triton mm": Source(
        CHOSEN_ON,
        "triton/mm__A100",
        A100,
        "time_ms",
        (*PRODUCT, "problem.mat1_dtype"),
        (*TILE, *WARPS),
    ),
    "Vidur prefill": Source(
        CHOSEN_ON,
        "llm/vidur_attention_a100_old",
        A100,
        "prefill",
        ("prefill_chunk_size", "kv_cache_size"),
        (),
        (("is_prefill", True),),
    ),
    "NeuSight bmm": Source(
        REPORTED_ON, "neusight/bmm", A100, "Latency", ("B", "M", "N", "K"), (), NEUSIGHT_GPU
    ),
    "NeuSight norm": Source(
        REPORTED_ON, "neusight/ln", A100, "Latency", ("B", "H"), (), NEUSIGHT_GPU
    ),
    "NeuSight gelu": Source(
        REPORTED_ON, "neusight/gelu", A100, "Latency", ("B", "H"), (), NEUSIGHT_GPU
    ),
    "Triton mixed mm": Source(
        REPORTED_ON, "triton/mixed_mm__A100", A100, "time_ms", PRODUCT, (*TILE, *WARPS)
    ),
    "flex attention": Source(
        REPORTED_ON,
        "triton/flex_attention__H100",
        H100,
        "time_ms",
        ("problem.batch", "problem.heads", "problem.seq_q", "problem.head_dim", "problem.dtype"),
        ("config.BLOCK_M", "config.BLOCK_N", *WARPS),
    ),
    "matrix products": Source(
        REPORTED_ON, "llm/gemm", H100, "latency", ("m", "n", "k"), ("gemm_dtype",), TRTLLM
    ),
    "attention prefill": Source(
        REPORTED_ON,
        "llm/context_attention",
        H100,
        "latency",
        ATTENTION,
        ("attn_dtype", "kv_cache_dtype", "window_size"),
        TRTLLM,
    ),
    "experts": Source(
        REPORTED_ON,
        "llm/moe",
        H100,
        "latency",
        ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
        ("moe_dtype", "kernel_source", "moe_tp_size", "moe_ep_size", "distribution"),
        TRTLLM,
    ),
    "all-reduce": Source(
        REPORTED_ON,
        "llm/custom_allreduce",
        H100,
        "latency",
        ("num_gpus", "message_size"),
        ("backend", "kernel_source", "ar_backend"),
        (("system", "h100_sxm"),),
    ),
    "MLA bmm": Source(
        REPORTED_ON,
        "llm/mla_bmm",
        H100,
        "latency",
        ("num_tokens", "num_heads"),
        ("bmm_dtype", "kernel_source"),
        TRTLLM,
    ),
    "MLA prefill": Source(
        REPORTED_ON,
        "llm/context_mla",
        H100,
        "latency",
        ("batch_size", "isl", "num_heads"),
        ("kv_cache_dtype",),
        TRTLLM,
    ),
    "MLA decode": Source(
        REPORTED_ON,
        "llm/generation_mla",
        H100,
        "latency",
        ("batch_size", "step", "num_heads"),
        ("kv_cache_dtype",),
        TRTLLM,
    ),
    "encoder attention": Source(
        REPORTED_ON,
        "llm/encoder_attention",
        H100,
        "latency",
        ("batch_size", "isl", "num_heads", "head_dim"),
        ("kernel_source",),
        TRTLLM,
    ),
    "aiter, MI300X": Source(
        REPORTED_ON,
        "amd/gemm_aiter",
        "AMD Instinct MI300X",
        "time_ms",
        PRODUCT,
        ("config.format", "config.variant", "config.out_dtype"),
        (("device", "AMD Instinct MI300X"),),
    ),
    "Vidur MLP": Source(
        REPORTED_ON, "llm/vidur_mlp", H100, "mlp_up", ("num_tokens", "n_embd", "n_expanded_embd")
    ),
    "Vidur all-reduce": Source(
        REPORTED_ON,
        "llm/vidur_network",
        H100,
        "median",
        ("num_workers", "size"),
        (),
        (("network_device", "h100_dgx"), ("collective", "all_reduce")),
    ),
    "MIOpen": Source(
        REPORTED_ON,
        "amd/convolution_miopen",
        "AMD Instinct MI210",
        "time_ms",
        tuple(
            f"problem.{name}"
            for name in (
                *("batch", "in_channels", "in_h", "in_w", "out_channels", "kernel_h", "kernel_w"),
                *("stride_h", "stride_w", "groups", "dtype"),
            )
        ),
        ("config.solver",),
        (("device", "AMD Instinct MI210"),),
    ),
}
"""Name of a table -> where its rows are."""
RENAMED = {
    "kernel": "kernel_name",
    "attn_prefill.median": "prefill",
    "mlp_up_proj.median": "mlp_up",
}
"""Columns that other tables have too, or that no expression can name -> what they are called."""


def foreign_tables(data: Path, names: Sequence[str] = ()) -> Iterator[ForeignTable]:
    """Yield the tables below ``data``, or those of ``names``; missing files are skipped."""
    for name, source in SOURCES.items():
        file = data / f"{source.file}.parquet"
        if (not names or name in names) and file.exists():
            yield _read(name, source, file)


def _read(name: str, source: Source, file: Path) -> ForeignTable:
    table = pd.read_parquet(file).rename(columns=RENAMED)
    if "status" in table:
        table = table[table["status"] == "ok"]
    for column, value in source.where:
        table = table[table[column] == value]

    # A stranger's columns have no prefix.
    table = table.dropna(subset=[source.time])
    columns = [*source.sizes, *source.config]
    rows = table[columns].rename(columns=_plain_name).reset_index(drop=True)
    texts = rows.select_dtypes(exclude="number").columns
    rows = rows.assign(**{column: rows[column].astype(str) for column in texts})
    rows["time_ms"] = table[source.time].to_numpy(dtype=float)

    # Rows that were measured again say nothing of other rows: the first one counts.
    rows = rows[rows["time_ms"] > 0].drop_duplicates([_plain_name(c) for c in columns])
    return ForeignTable(
        name=name,
        half=source.half,
        device=source.device,
        rows=rows.reset_index(drop=True),
        sizes=tuple(_plain_name(column) for column in source.sizes),
    )


def _plain_name(column: str) -> str:
    return column.removeprefix("problem.").removeprefix("config.")


@dataclass(frozen=True)
class Split:
    """Rows to learn from and rows to predict, as row numbers."""

    training: np.ndarray
    test: np.ndarray


MAX_TEST_ROWS = 500
TEST_SHARE = 0.25
LARGEST_SHARE = 0.2
LARGE_SIZE = 16
"""Columns that never exceed this are no sizes of the work (heads, flags)."""


def problems_held_out(
    table: ForeignTable, rng: np.random.Generator, max_rows: int, problems: int | None = None
) -> Split:
    """Hold out a quarter of the problems; learn from ``max_rows`` rows, of all or of some others.

    ``problems`` is the number of problems to learn from.
    """
    problem = table.rows.groupby(list(table.sizes), observed=True).ngroup().to_numpy()
    shuffled = rng.permutation(int(problem.max()) + 1)
    n_test = max(1, round(TEST_SHARE * len(shuffled)))
    known = shuffled[n_test:][:problems]
    return _thinned(np.isin(problem, known), np.isin(problem, shuffled[:n_test]), rng, max_rows)


def largest_held_out(table: ForeignTable, rng: np.random.Generator, max_rows: int) -> Split:
    """Hold out the fifth of the rows with the largest product of sizes."""
    numbers = table.rows[list(table.sizes)].select_dtypes("number")
    large = numbers.loc[:, numbers.max() > LARGE_SIZE]
    log_work = np.log2(np.maximum(large.to_numpy(dtype=float), 0.5)).sum(axis=1)
    is_large = log_work > np.quantile(log_work, 1.0 - LARGEST_SHARE)
    return _thinned(~is_large, is_large, rng, max_rows)


def _thinned(
    is_training: np.ndarray, is_test: np.ndarray, rng: np.random.Generator, max_rows: int
) -> Split:
    training = rng.permutation(np.flatnonzero(is_training))[:max_rows]
    test = rng.permutation(np.flatnonzero(is_test))[:MAX_TEST_ROWS]
    return Split(training, test)


Splitter = Callable[[ForeignTable, np.random.Generator, int], Split]


def _few(problems: int) -> Splitter:
    return lambda table, rng, max_rows: problems_held_out(table, rng, max_rows, problems)


def _rows(rows: int) -> Splitter:
    return lambda table, rng, max_rows: problems_held_out(table, rng, rows)


SPLITS: dict[str, Splitter] = {
    "problems": problems_held_out,
    "largest": largest_held_out,
    "8 problems": _few(8),
    "16 problems": _few(16),
    "32 problems": _few(32),
    "50 rows": _rows(50),
    "200 rows": _rows(200),
}
"""What is held out, or how little is known."""
QUICK_SPLITS = ("problems", "largest")
