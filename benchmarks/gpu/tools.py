"""Do the doors, servers, the gate and the judge work on a GPU? Pass, fail, or not installed.

    PYTHONPATH=src python benchmarks/gpu/tools.py --out tools.jsonl
    PYTHONPATH=src python benchmarks/gpu/tools.py --replay       # no GPU: what can run without one
    PYTHONPATH=src python benchmarks/gpu/tools.py --minutes 0 --out tools.jsonl    # prints a file

``server``: an engine's processes with FORETUNE_TRITON, a warm-up between them. ``gate``: a CUDA
kernel that does a tenth more work turns the gate red, its equal twin does not. ``judge``: a right
and a wrong solution in Triton, in each form of a task. ``flashinfer``, ``helion``: their own
tuners, with Foretune and without. A tool that is not installed is named, and that is no failure.

Rows are written to ``--out`` at once. With ``--replay``, the server's kernels are compiled and not
launched; the gate's kernel is in C, on this CPU; Triton's interpreter runs the judge's solutions;
FlashInfer has made-up times; Helion's kernel is interpreted (by Pallas).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("benchmarks", "benchmarks/gpu", "examples/kernels", "tests/replay_gpu")
)

from item_runner import Item, ItemList
from tool_flashinfer import flashinfer
from tool_gate import gate
from tool_helion import helion
from tool_judge import judge
from tool_server import server

ITEMS = {
    "server": Item("a server's kernel, warmed up", server, 60),
    "gate": Item("the gate on CUDA kernels", gate, 100),
    "judge": Item("solutions in Triton, by each form", judge, 60),
    "flashinfer": Item("FlashInfer's own tuner, by its door", flashinfer, 60),
    "helion": Item("Helion's own tuner, by its door", helion, 60),
}
TURNS = (("server",), ("gate", "judge"), ("flashinfer",), ("helion",))
"""The judge times next to nothing, and has ended when the gate has built its environments."""


def main(argv: Sequence[str] | None = None) -> None:
    tools = ItemList(
        script=Path(__file__).resolve(),
        title="Tools and servers on a GPU",
        items=ITEMS,
        turns=TURNS,
        minutes=2.0,
        replay_device="NVIDIA H200",
    )
    tools.main(__doc__, argv)


if __name__ == "__main__":
    main()
