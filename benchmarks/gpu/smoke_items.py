"""The items of `smoke.py`: what only a GPU can show."""

from item_runner import Item
from smoke_compilers import cuda_source, inductor
from smoke_device import described, power
from smoke_kernels import kernels, several_launches
from smoke_streams import capture, other_stream
from smoke_tuning import check_memory, decorator, decorator_again, descriptors, modes

ITEMS = {
    "1": Item("every Triton kernel", kernels, 40),
    "2": Item("the decorator, and stock Triton", decorator, 40),
    "2b": Item("a second process finds the choices", decorator_again, 30),
    "3": Item("first call in a graph capture", capture, 30),
    "4": Item("descriptors set by a hook", descriptors, 30),
    "5": Item("memory that check= takes", check_memory, 30),
    "6": Item("another stream", other_stream, 30),
    "7": Item("power of a GPU given by UUID", power, 15, replayed=False),
    "8": Item("torch.compile, patched", inductor, 40, replayed=False),
    "9": Item("times of calls with several launches", several_launches, 20),
    "10": Item("descriptor and doctor", described, 40, replayed=False),
    "11": Item("modes graph, online; energy", modes, 30),
    # It may say that other processes are busy.
    "12": Item("a CUDA source", cuda_source, 90, replayed=False, may_warn=True),
}
