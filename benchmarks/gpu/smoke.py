"""Does everything work that needs a GPU? Pass or fail, item by item, in two minutes.

    PYTHONPATH=src python benchmarks/gpu/smoke.py --out smoke.jsonl
    PYTHONPATH=src python benchmarks/gpu/smoke.py --replay        # no GPU: runs through, compiles
    PYTHONPATH=src python benchmarks/gpu/smoke.py --minutes 0 --out smoke.jsonl    # prints a file

Every item runs in a separate process with a time limit, so none stops another. All processes start
at once and wait for their turn; only one is timed at a time. Rows are written to ``--out`` at once.

With ``--replay`` nothing is launched and nothing is compared, but Triton really compiles for
``--device``. With TRITON_CACHE_DIR set, a GPU of that kind then finds its programs there
(`torch.compile`, CUDA sources, and the small C modules that launch programs aside).
"""

import sys
from pathlib import Path

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("benchmarks", "benchmarks/gpu", "examples/kernels", "tests/replay_gpu")
)

import torch
from item_runner import ItemList
from smoke_items import ITEMS

TURNS = (("1",), ("2",), ("2b", "3", "4", "5", "6", "10", "8", "12"), ("7",), ("9",), ("11",))


def variables(item: str) -> dict[str, str]:
    """Return the environment variables of an item's process."""
    if item != "7":
        return {}
    return {"CUDA_VISIBLE_DEVICES": f"GPU-{torch.cuda.get_device_properties(0).uuid}"}


def main() -> None:
    smoke = ItemList(
        script=Path(__file__).resolve(),
        title="What only a GPU can show",
        items=ITEMS,
        turns=TURNS,
        minutes=2.0,
        replay_device="NVIDIA H100 80GB HBM3",
        variables=variables,
    )
    smoke.main(__doc__)


if __name__ == "__main__":
    main()
