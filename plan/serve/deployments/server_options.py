"""What a benchmark's result says about its server beside the layout: formats, drafts, replicas.

SGLang writes the server's arguments into a result, and ``vllm bench sweep`` the options that it
started the server with. A line that was measured with other formats, with speculative decoding or
on several replicas would correct a plan wrongly, in silence.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe.formats import Formats

Fields = Mapping[str, Any]

CACHE_OF_OPTION = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}
"""Engines' ``kv_cache_dtype`` -> format."""
WEIGHTS_OF_OPTION = {"fp8": "fp8", "w8a8_fp8": "fp8", "ptpc_fp8": "fp8"}
"""Engines' ``quantization`` of a checkpoint in 16 bits -> format."""
UNQUANTIZED = "bf16"
AUTOMATIC = ("", "none", "auto")
"""Options, in lower case, that leave a format to the checkpoint."""
DRAFTING_OPTIONS = ("speculative_algorithm", "speculative_config", "speculative_model")
ACCEPTED_LENGTHS = ("accept_length", "spec_decode_acceptance_length")
"""Tokens per step with drafts: of SGLang, and of vLLM."""


def options_of(line: Fields, server: Fields) -> dict[str, Any]:
    """Return the options of a line and its server, with ``_`` between words."""
    return {name.strip("-").replace("-", "_"): value for name, value in {**server, **line}.items()}


def formats_of(options: Fields, published: Formats, path: Path) -> Formats:
    """Return the formats that a server ran: as labelled, by its options, or the checkpoint's.

    Raises UsageError for options that are not understood.
    """
    quantization = str(options.get("quantization") or "").lower()
    weights = published.weights
    moe = published.moe
    # A checkpoint that is quantized has its method's name there.
    if quantization not in AUTOMATIC and weights == moe == UNQUANTIZED:
        if quantization not in WEIGHTS_OF_OPTION and "weights" not in options:
            raise UsageError(
                f"--calibrate {path}: its server quantizes weights ({quantization}): "
                'add their format to its lines, like "weights": "fp8"'
            )
        weights = moe = WEIGHTS_OF_OPTION.get(quantization, UNQUANTIZED)

    cache = str(options.get("kv_cache_dtype") or "").lower()
    kv = published.kv
    if cache not in AUTOMATIC:
        if cache not in CACHE_OF_OPTION and "kv" not in options:
            raise UsageError(
                f"--calibrate {path}: its server's cache is in {cache}: "
                'add the format to its lines, like "kv": "fp8"'
            )
        kv = CACHE_OF_OPTION.get(cache, UNQUANTIZED)

    # Labels of the user count before the server's options.
    return Formats(
        weights=str(options.get("weights", weights)),
        kv=str(options.get("kv", kv)),
        moe=str(options.get("moe", options.get("weights", moe))),
    )


def require_plain_steps(options: Fields, path: Path) -> None:
    """Raise UsageError for speculative decoding, and for several replicas behind one address."""
    lengths = [options.get(name) for name in ACCEPTED_LENGTHS]
    accepted = max((each for each in lengths if isinstance(each, (int, float))), default=0)
    if accepted > 1 or any(options.get(name) for name in DRAFTING_OPTIONS):
        raise UsageError(
            f"--calibrate {path} was measured with speculative decoding, whose steps differ: run "
            "the benchmark without it"
        )
    replicas = options.get("dp_size")
    if isinstance(replicas, int) and replicas > 1 and options.get("enable_dp_attention") is False:
        raise UsageError(
            f"--calibrate {path} was measured on {replicas} replicas (dp_size), which share its "
            "requests: run the benchmark on one"
        )
