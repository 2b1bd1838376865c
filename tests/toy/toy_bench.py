"""A load generator with the options and the report of ``vllm bench serve``, for tests.

It loads the server in earnest, with Foretune's own client, but prompts are numbers of tokens, and
no tokenizer is read. ``TOY_BENCH`` makes it fail: exit, hang, silent, short, none.
"""

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from foretune.plan import Workload
from foretune.plan.prove.client import Prompts, serve_load
from foretune.plan.prove.figures import summarize_run
from foretune.plan.prove.load import Load


def write_program(folder: Path) -> Path:
    """Write the program ``vllm`` that runs this one, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "vllm"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return folder


def main() -> int:
    failure = os.environ.get("TOY_BENCH", "")
    words = sys.argv[1:]
    assert words[:2] == ["bench", "serve"]
    options = {word: value for word, value in pairwise(words) if word.startswith("--")}
    if failure == "exit":
        print("the tokenizer does not exist", file=sys.stderr)
        return 3
    if failure == "hang":
        subprocess.run(["sleep", "61.5"], check=True)
    if failure == "silent":
        return 0

    rate = float(options.get("--request-rate", 0))
    concurrency = int(options.get("--max-concurrency", 0))
    isl = int(options["--random-input-len"]) // (2 if failure == "short" else 1)
    osl = int(options["--random-output-len"])
    load = Load(Workload(isl, osl), concurrency=concurrency, rate=rate)
    prompts = Prompts(options["--served-model-name"], vocab=1000)
    begun = time.monotonic()
    served = serve_load(options["--base-url"], load, prompts, int(options["--seed"]), limit_s=60)
    run = summarize_run(served)
    report = {
        "model_id": options["--model"],
        "max_concurrency": concurrency or None,
        "completed": 0 if failure == "none" else run.requests,
        "failed": 0,
        "duration": time.monotonic() - begun,
        "total_input_tokens": run.prompt_tokens,
        "total_output_tokens": run.tokens,
        "output_throughput": run.tokens_per_s,
        "median_ttft_ms": run.ttft_ms,
        "median_tpot_ms": run.tpot_ms,
    }
    path = Path(options["--result-dir"]) / options["--result-filename"]
    path.write_text(json.dumps(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
