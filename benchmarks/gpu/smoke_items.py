"""The items of `smoke.py`: what only a GPU can show."""

from collections.abc import Callable
from dataclasses import dataclass

from smoke_compilers import cuda_source, inductor
from smoke_device import described, power
from smoke_kernels import kernels, several_launches
from smoke_rows import Run
from smoke_streams import capture, other_stream
from smoke_tuning import check_memory, decorator, decorator_again, descriptors, modes


@dataclass(frozen=True)
class Item:
    """Something to check: the most seconds it may take, and whether a part of it is replayed."""

    title: str
    function: Callable[[Run], None]
    limit_s: float
    replayed: bool = True


ITEMS = {
    "1": Item("every Triton kernel", kernels, 40),
    "2": Item("the decorator, and stock Triton", decorator, 40),
    "2b": Item("a second process finds the choices", decorator_again, 30),
    "3": Item("first call in a graph capture", capture, 30),
    "4": Item("descriptors set by a hook", descriptors, 30),
    "5": Item("memory that check= takes", check_memory, 30),
    "6": Item("another stream", other_stream, 30),
    "7": Item("power of a GPU given by UUID", power, 15, False),
    "8": Item("torch.compile, patched", inductor, 40, False),
    "9": Item("times of calls with several launches", several_launches, 20),
    "10": Item("descriptor and doctor", described, 40, False),
    "11": Item("modes graph, online; energy", modes, 30),
    "12": Item("a CUDA source", cuda_source, 90, False),
}
