"""Names of checkpoints: the model and the format that a name contains."""

from foretune.plan.describe import shipped_json

FORMAT_OF_SUFFIX: dict[str, str] = shipped_json("checkpoint_formats.json")["suffixes"]
"""Last word of a checkpoint's name -> format of its projections and experts."""
FOUR_BIT_FORMATS = ("nvfp4", "mxfp4", "int4_wo")


def format_in_name(name: str) -> str:
    """Return the format in a name like ``nvidia/Qwen3-32B-NVFP4``; empty if none."""
    for word in reversed(name.lower().replace(".", "-").replace("_", "-").split("-")):
        if word in FORMAT_OF_SUFFIX:
            # Qwen publishes blockwise fp8 (``weight_block_size`` in ``config.json``).
            blockwise = word == "fp8" and name.lower().startswith("qwen/")
            return "fp8_block" if blockwise else FORMAT_OF_SUFFIX[word]
    return ""
