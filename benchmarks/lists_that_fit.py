"""Which failures of a list does `foretune inspect --all-gpus` foretell, and which are false alarms?

    python benchmarks/lists_that_fit.py [--targets sm_80 sm_90] [--json]

Lists of a product of tiles, of an attention and of a softmax are foretold from unoptimized code,
then compiled for each architecture, without a GPU. A failure is a configuration that does not
compile, or whose block exceeds the shared memory, threads or registers of the architecture. What
takes longer than a minute to compile is left out. The list of the product has the tiles that
authors use. The rules were found on the same product with six other tiles in fp16, and on the
attention with 64 per head.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import markdown

from foretune.collect.compiled.arguments import parse_argument
from foretune.collect.compiled.compile_pool import compile_configs, load_kernel
from foretune.collect.compiled.foretelling import foretell
from foretune.collect.compiled.gpu_targets import TARGETS, get_target
from foretune.measurement import Status

KERNELS = Path(__file__).parent / "recorded_kernels.py"
ATTENTION = Path(__file__).parents[1] / "examples" / "kernels" / "triton_attention.py"
SIZES = (
    "M=i32",
    "N=i32",
    "K=i32",
    "stride_am=i32",
    "stride_ak=1",
    "stride_bk=i32",
    "stride_bn=1",
    "stride_cm=i32",
    "stride_cn=1",
)
"""Arguments of the product, besides its tensors."""
TILES = (
    (128, 256, 32, 3, 8),
    (64, 256, 32, 4, 4),
    (128, 128, 32, 6, 4),
    (64, 32, 64, 7, 2),
    (32, 64, 128, 3, 4),
    (128, 128, 128, 4, 8),
    (256, 128, 64, 4, 8),
    (256, 256, 64, 3, 8),
)
"""Rows, columns, depth, stages and warps."""
STRIDES = tuple(f"stride_{tensor}{axis}=i32" for tensor in "qkvo" for axis in "bhs")
QUERIES = (
    (32, 32, 3, 2),
    (64, 32, 4, 4),
    (64, 64, 2, 4),
    (64, 128, 3, 4),
    (128, 64, 2, 8),
    (128, 64, 4, 8),
    (128, 128, 3, 8),
    (256, 64, 2, 8),
)
"""Of attention: queries, keys, stages and warps."""
CASES: dict[str, tuple[str, tuple[str, ...], list[dict[str, int]]]] = (
    {
        f"product, {dtype}": (
            f"{KERNELS}:tiled_product",
            (f"A={dtype}*", f"B={dtype}*", f"C={dtype}*", *SIZES),
            [
                {"TALL": m, "WIDE": n, "DEEP": k, "num_stages": stages, "num_warps": warps}
                for m, n, k, stages, warps in TILES
            ],
        )
        for dtype in ("fp16", "fp32")
    }
    | {
        f"attention, {dim} per head": (
            f"{ATTENTION}:_attention",
            (
                *("q=fp16*", "k=fp16*", "v=fp16*", "o=fp16*", "scale=0.125"),
                *("heads=i32", "group=4", "length=i32", *STRIDES),
            ),
            [
                {
                    **{"D": dim, "BLOCK_M": queries, "BLOCK_N": keys, "CAUSAL": True},
                    **{"num_stages": stages, "num_warps": warps},
                }
                for queries, keys, stages, warps in QUERIES
            ],
        )
        for dim in (64, 128)
    }
    | {
        "softmax, fp16": (
            f"{KERNELS}:softmax_rows",
            ("OUT=fp16*", "IN=fp16*", "rows=i32", "columns=i32", "stride=i32"),
            [{"WIDTH": 4096, "num_warps": warps} for warps in (4, 16, 32)],
        )
    }
)
"""By name: a kernel, its arguments and its list."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)

    found: dict[str, dict[str, Any]] = {}
    for case in options.cases:
        for target in options.targets:
            found[f"{case} on {target}"] = judge(case, target)
            print(f"{case} on {target}: {found[f'{case} on {target}']}", file=sys.stderr)
    print(json.dumps(found) if options.json else text_of(found))


def judge(case: str, target_name: str) -> dict[str, Any]:
    """Compare what is foretold of a list with what compiling finds."""
    location, texts, configs = CASES[case]
    target = get_target(target_name)
    arguments = dict(map(parse_argument, texts))
    foretold = foretell(load_kernel(location), arguments, configs, [target])[target.name]
    fails: list[bool | None] = [None] * len(configs)
    with tempfile.TemporaryDirectory() as cache:
        compiled = compile_configs(
            location, (), configs, target, kwargs=arguments, jobs=1, cache_dir=cache
        )
        for position, outcome in compiled:
            if outcome.status is not Status.TIMEOUT:
                fails[position] = not outcome.ok
    pairs = [
        (bool(reason), fail)
        for reason, fail in zip(foretold, fails, strict=True)
        if fail is not None
    ]
    return {
        "configurations": len(pairs),
        "failures": sum(fail for _, fail in pairs),
        "foretold": pairs.count((True, True)),
        "false_alarms": pairs.count((True, False)),
        "missed": [
            str(config)
            for config, reason, fail in zip(configs, foretold, fails, strict=True)
            if fail and not reason
        ],
        "too_slow": fails.count(None),
    }


def text_of(found: dict[str, dict[str, Any]]) -> str:
    """Return a row per list and architecture, and the sums."""
    names: Sequence[str] = ("configurations", "failures", "foretold", "false_alarms")
    rows = [[name, *(str(counts[n]) for n in names)] for name, counts in found.items()]
    totals = {n: sum(counts[n] for counts in found.values()) for n in names}
    return (
        f"{markdown(['list', 'configurations', 'failures', 'foretold', 'false alarms'], rows)}\n"
        f"{totals['foretold']} of {totals['failures']} failures foretold, "
        f"{totals['false_alarms']} false alarms among "
        f"{totals['configurations'] - totals['failures']} configurations that compile and fit.\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
