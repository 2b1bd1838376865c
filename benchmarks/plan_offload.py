"""Is a prefix read from disk in the time that plans say? Prints a table.

Run: ``python benchmarks/plan_offload.py [FOLDER] [--rounds 4]`` with SGLang's own store of prefixes
(``pip install --no-deps sglang==0.5.23; pip install torch orjson pybase64 msgspec``); no GPU is
needed. Prefixes of five models are written with that store, dropped from memory, and read again by
all ranks at once. Before each round the folder's disk is measured as ``--link disk=FOLDER`` does.
"""

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from foretune.collect.link_rates import measure_disk
from foretune.plan import Formats, Layout, Workload, describe_model, find_system
from foretune.plan.describe.layout import Offload
from foretune.plan.serve.deployments.deployment import PAGE_TOKENS, Deployment

PREFIX_TOKENS = 2048
KEYS = [f"page{number}" for number in range(PREFIX_TOKENS // PAGE_TOKENS)]
"""Names of a prefix's pages."""
MODELS = {
    "Qwen/Qwen2.5-0.5B": 1,
    "Qwen/Qwen3-0.6B": 1,
    "meta-llama/Llama-3.1-8B": 1,
    "meta-llama/Llama-3.1-70B": 8,
    "deepseek-ai/DeepSeek-V3": 8,
}
"""Model -> GPUs of its tensor parallelism, each of which reads its files in a thread."""


@dataclass
class Case:
    """A model's prefix on disk.

    Attributes:
        model: its name.
        deployment: how it is served.
        stores: SGLang's store of each rank's pages.
        pages: of each rank, a page in host memory.
        measured_ms: what reading the prefix took, by round.
        ratios: planned / measured, by round.
    """

    model: str
    deployment: Deployment
    stores: list[Any]
    pages: list[Any]
    measured_ms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


def main() -> None:
    """Print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        cases = [
            write(model, ranks, Path(folder, model.replace("/", "-")))
            for model, ranks in MODELS.items()
        ]
        for _ in range(arguments.rounds):
            gbps = measure_disk(arguments.folder).gbps
            for case in cases:
                time_case(case, gbps)

    print("| model, GPUs | page, MiB | read, ms | planned / measured |")
    print("|---|---|---|---|")
    for case in cases:
        print(line(case))


def write(model: str, ranks: int, folder: Path) -> Case:
    """Write a prefix with SGLang's store, every rank its own part."""
    import torch

    deployment = Deployment(
        describe_model(model),
        find_system("h100_sxm"),
        "sglang",
        Layout(ranks),
        Formats(),
        Workload(PREFIX_TOKENS + 64, 64, PREFIX_TOKENS),
        concurrency=1,
        offload=Offload(cache_gib=1, disk_gib=1),
    )
    page_bytes = round(deployment.prefix_bytes * PAGE_TOKENS / PREFIX_TOKENS)
    pages = [torch.empty(page_bytes, dtype=torch.uint8) for _ in range(ranks)]
    stores = [rank_store(deployment, rank, folder) for rank in range(ranks)]
    for store in stores:
        for key in KEYS:
            store.set(key, torch.randint(255, (page_bytes,), dtype=torch.uint8))
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return Case(model, deployment, stores, pages)


def rank_store(deployment: Deployment, rank: int, folder: Path) -> Any:
    """Return SGLang's store of a rank; ranks share the files of a latent cache."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

    return HiCacheFile(
        HiCacheStorageConfig(
            tp_rank=rank,
            tp_size=deployment.layout.tp,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=deployment.model.mla is not None,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name=deployment.model.name,
            extra_config={"file_storage_path": str(folder)},
        )
    )


def time_case(case: Case, gbps: float) -> None:
    """Read a prefix on all ranks at once, and compare with what a plan says of this disk."""
    for path in Path(case.stores[0].file_path).iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    with ThreadPoolExecutor(len(case.stores)) as ranks:
        start = time.perf_counter()
        read = list(ranks.map(read_prefix, case.stores, case.pages))
        case.measured_ms.append(1e3 * (time.perf_counter() - start))
    if not all(read):
        raise RuntimeError(f"SGLang's store has lost a page of {case.model}")

    system = replace(case.deployment.system, disk_gbps=gbps)
    planned_ms = replace(case.deployment, system=system).disk_read_ms
    case.ratios.append(planned_ms / case.measured_ms[-1])


def read_prefix(store: Any, page: Any) -> bool:
    """Read all pages of a rank; return whether none is missing."""
    return all(found is not None for found in store.batch_get(KEYS, [page] * len(KEYS)))


def line(case: Case) -> str:
    """Return a case as a row: medians, and least to largest of the ratios."""
    cells = [
        f"{case.model}, {case.deployment.layout.tp}",
        f"{case.pages[0].numel() / 2**20:.2f}",
        f"{median(case.measured_ms):.0f}",
    ]
    spread = f"{min(case.ratios):.2f}–{max(case.ratios):.2f}"
    cells.append(f"{median(case.ratios):.2f} ({spread})")
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
