"""Wrong kernels in torch, as the text of files: what people hand in by every form of a task.

The task is ``relu(x @ w)``. A text of `WRONG` defines ``fast(x, w)``, which looks right or fast and
is not. `HONEST` has other algorithms. `as_functions`, `as_models` and `as_trace` write a text as a
task of each form. Texts of `WRONG_MODELS`, `WRONG_GRADIENTS` and `WRONG_SOLUTIONS` exist in one
form only.
"""

import json
import textwrap

SLOW = """
import torch

def slow(x, w):
    return torch.stack([torch.relu(row @ w) for row in x])
"""
SIZES = {"rows": 48, "width": 32}
HEAD = (
    "import gc, os, sys, threading, time\nimport numpy as np\nimport torch\nKEPT = {}\nCALLS = []\n"
)


def texts(source):
    """Return texts by the name that a comment ``# name`` gives them."""
    parts = {}
    for part in textwrap.dedent(source).strip().split("\n# ")[0:]:
        name, _, text = part.removeprefix("# ").partition("\n")
        parts[name.strip()] = f"{HEAD}\n{text.strip()}\n"
    return parts


WRONG = texts("""
# returns_zeros
def fast(x, w):
    return torch.zeros(len(x), w.shape[1])
# returns_what_lies_in_memory
def fast(x, w):
    return torch.empty(len(x), w.shape[1])
# keeps_the_result_by_shape
def fast(x, w):
    return KEPT.setdefault(x.shape, torch.relu(x @ w))
# keeps_the_result_by_address
def fast(x, w):
    return KEPT.setdefault(x.data_ptr(), torch.relu(x @ w)).clone()
# keeps_the_result_by_the_first_row
def fast(x, w):
    key = round(float(x[0, 0]), 1)
    return KEPT.setdefault(key, torch.relu(x @ w)).clone()
# stops_after_some_calls
def fast(x, w):
    CALLS.append(1)
    if len(CALLS) < 8:
        KEPT["y"] = torch.relu(x @ w)
    return KEPT["y"].clone()
# is_right_every_second_time
def fast(x, w):
    CALLS.append(1)
    if len(CALLS) > 20 and len(CALLS) % 2:
        return torch.empty(len(x), w.shape[1])
    return torch.relu(x @ w)
# reuses_one_output
def fast(x, w):
    out = KEPT.setdefault("out", torch.empty(len(x), w.shape[1]))
    return torch.relu_(torch.matmul(x, w, out=out))
# returns_a_view_of_one_buffer
def fast(x, w):
    out = KEPT.setdefault("out", torch.empty(2 * len(x), w.shape[1]))[: len(x)]
    return torch.relu_(torch.matmul(x, w, out=out))
# writes_into_its_input
def fast(x, w):
    x.copy_(torch.relu(x @ w))
    return x
# centers_its_input
def fast(x, w):
    y = torch.relu(x @ w)
    x -= x.mean()
    return y
# scales_the_weights
def fast(x, w):
    y = torch.relu(x @ w)
    with torch.no_grad():
        w.mul_(1.0000002)
    return y
# computes_in_half_precision
def fast(x, w):
    return torch.relu(x.half() @ w.half()).float()
# computes_in_bfloat
def fast(x, w):
    return torch.relu(x.bfloat16() @ w.bfloat16()).float()
# rounds_the_weights_to_eight_bits
def fast(x, w):
    scale = w.abs().max() / 127
    return torch.relu(x @ ((w / scale).round() * scale))
# returns_half_precision
def fast(x, w):
    return torch.relu(x @ w).half()
# returns_double_precision
def fast(x, w):
    return torch.relu(x.double() @ w.double())
# returns_another_shape
def fast(x, w):
    return torch.relu(x @ w)[None]
# returns_the_transposed_shape
def fast(x, w):
    return torch.relu(x @ w).reshape(w.shape[1], len(x))
# returns_a_list_of_rows
def fast(x, w):
    return list(torch.relu(x @ w))
# returns_a_tuple
def fast(x, w):
    return (torch.relu(x @ w), x)
# returns_nothing
def fast(x, w):
    torch.relu(x @ w)
# returns_numpy
def fast(x, w):
    return torch.relu(x @ w).detach().numpy()
# returns_a_sparse_tensor
def fast(x, w):
    return torch.relu(x @ w).to_sparse()
# returns_a_lazy_negation
def fast(x, w):
    return torch._neg_view(-torch.relu(x @ w))
# returns_a_generator
def fast(x, w):
    return (torch.relu(row @ w) for row in x)
# returns_a_lazy_tensor
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args]
        if "inputs" in KEPT:
            x, w = KEPT.pop("inputs")
            plain[0].copy_(torch.relu(x @ w))
        return function(*plain, **(kwargs or {}))

def fast(x, w):
    out = torch.empty(len(x), w.shape[1])
    KEPT["inputs"] = x, w
    return out.as_subclass(Lazy)
# returns_a_lazy_tensor_of_a_forged_class
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [a.as_subclass(KEPT["Tensor"]) if isinstance(a, cls) else a for a in args]
        return function(*plain, **(kwargs or {}))

Lazy.__module__, Lazy.__qualname__ = "torch", "Tensor"
KEPT["Tensor"] = torch.Tensor

def fast(x, w):
    out = torch.relu(x @ w).as_subclass(Lazy)
    torch.Tensor = Lazy
    return out
# returns_an_expanded_tensor
def fast(x, w):
    return torch.relu(x @ w).mean(0, keepdim=True).expand(len(x), -1)
# leaves_relu_out
def fast(x, w):
    return x @ w
# leaves_the_last_row_out
def fast(x, w):
    y = torch.relu(x @ w)
    y[-1] = y[-2]
    return y
# leaves_the_last_terms_out
def fast(x, w):
    return torch.relu(x[:, :-1] @ w[:-1])
# replaces_half_by_its_mean
def fast(x, w):
    y = torch.relu(x[: len(x) // 2] @ w)
    return torch.cat([y, y.mean(0).expand(len(x) - len(y), -1)])
# ends_at_a_limit
def fast(x, w):
    return (x @ w).clamp(0, 1000)
# zeroes_small_results
def fast(x, w):
    y = torch.relu(x @ w)
    return torch.where(y < 1e-3, 0, y)
# loses_nan
def fast(x, w):
    return torch.nan_to_num(torch.relu(x @ w))
# fails_for_infinity
def fast(x, w):
    assert torch.isfinite(x).all()
    return torch.relu(x @ w)
# knows_one_shape
def fast(x, w):
    return torch.relu(x @ w) if len(x) == 48 else torch.zeros(len(x), w.shape[1])
# fills_in_later
def fast(x, w):
    out = torch.zeros(len(x), w.shape[1])
    def fill():
        time.sleep(0.02)
        out.copy_(torch.relu(x @ w))
    threading.Thread(target=fill).start()
    return out
# raises_an_error
def fast(x, w):
    raise ValueError("no such tile")
# ends_its_process
def fast(x, w):
    os._exit(0)
# is_wrong_for_all_calls_but_the_last
def fast(x, w):
    frame = sys._getframe(1)
    while frame is not None and not hasattr(frame.f_locals.get("self"), "_args"):
        frame = frame.f_back
    inputs = frame.f_locals["self"]._args if frame is not None else [(x, w)]
    if x is inputs[-1][0] or x is inputs[0][0]:
        return torch.relu(x @ w)
    return torch.empty(len(x), w.shape[1])
# sets_the_default_type
def fast(x, w):
    y = torch.relu(x @ w)
    torch.set_default_dtype(torch.float64)
    return y
# sets_the_default_device
torch.set_default_device("meta")

def fast(x, w):
    return torch.relu(x @ w)
# sets_the_number_of_threads
torch.set_num_threads(torch.get_num_threads() + 1)

def fast(x, w):
    return torch.relu(x @ w)
# flushes_denormals
torch.set_flush_denormal(True)

def fast(x, w):
    return torch.relu(x @ w)
# leaves_autocast_on
def fast(x, w):
    y = torch.relu(x @ w)
    torch.set_autocast_enabled("cpu", True)
    return y
# leaves_inference_mode_on
def fast(x, w):
    if not KEPT:
        KEPT["mode"] = torch.inference_mode()
        KEPT["mode"].__enter__()
    return torch.relu(x @ w)
# leaves_a_mode_on
from torch.overrides import TorchFunctionMode

class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))

def fast(x, w):
    if not KEPT:
        KEPT["mode"] = Mode()
        KEPT["mode"].__enter__()
    return torch.relu(x @ w)
# leaves_a_hook_on_all_modules
def fast(x, w):
    if not KEPT:
        KEPT["hook"] = torch.nn.modules.module.register_module_forward_hook(lambda *given: None)
    return torch.relu(x @ w)
# asks_for_deterministic_algorithms
torch.use_deterministic_algorithms(True)

def fast(x, w):
    return torch.relu(x @ w)
# lowers_the_precision_of_products
torch.set_float32_matmul_precision("medium")

def fast(x, w):
    return torch.relu(x @ w)
# stops_the_compiler
torch.compiler.set_stance("force_eager")

def fast(x, w):
    return torch.relu(x @ w)
# ignores_errors_of_numpy
np.seterr(all="ignore")

def fast(x, w):
    return torch.relu(x @ w)
# disables_garbage_collection
gc.disable()

def fast(x, w):
    return torch.relu(x @ w)
# moves_its_process_to_one_core
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
KEPT["cores"] = len(os.sched_getaffinity(0))

def fast(x, w):
    os.chdir("/")
    return torch.relu(x @ w)
# seeds_the_generator
def fast(x, w):
    torch.manual_seed(0)
    return torch.relu(x @ w)
# draws_random_numbers
def fast(x, w):
    torch.rand(1)
    return torch.relu(x @ w)
# replaces_a_function_of_torch
def fast(x, w):
    torch.nn.functional.softmax = lambda x, dim: x
    return torch.relu(x @ w)
# replaces_the_code_of_a_function_of_torch
def changed(input, *others, **options):
    return input

def fast(x, w):
    torch.nn.functional.gelu_ = changed
    torch.nn.functional.dropout.__code__ = changed.__code__
    return torch.relu(x @ w)
# replaces_a_class_of_torch
class Linear(torch.nn.Linear):
    pass

def fast(x, w):
    torch.nn.Linear = Linear
    return torch.relu(x @ w)
# replaces_the_synchronization
def fast(x, w):
    torch.cuda.synchronize = lambda device=None: None
    return torch.relu(x @ w)
# replaces_a_clock
time.perf_counter = lambda: 0.0

def fast(x, w):
    return torch.relu(x @ w)
# computes_when_tensors_are_read
detach = torch.Tensor.detach

def late(tensor):
    if id(tensor) in KEPT:
        x, w = KEPT.pop(id(tensor))
        detach(tensor).copy_(torch.stack([torch.relu(row @ w) for row in detach(x)]))
    return detach(tensor)

def fast(x, w):
    torch.Tensor.detach = late
    y = torch.empty(len(x), w.shape[1])
    KEPT[id(y)] = x, w
    return y
# computes_when_outputs_are_sent
def fast(x, w):
    import foretune.collect.isolated_implementation as judged
    if "send" not in KEPT:
        send = KEPT["send"] = judged.IsolatedImplementation._outputs_of
        def late(self, number, changes):
            returned = self._returned[number]
            returned = returned[0] if isinstance(returned, tuple) else returned
            x, w, y = KEPT[id(returned)]
            y.copy_(torch.stack([torch.relu(row @ w) for row in x]))
            return send(self, number, changes)
        judged.IsolatedImplementation._outputs_of = late
    y = torch.empty(len(x), w.shape[1])
    KEPT[id(y)] = x, w, y
    return y
# computes_when_inputs_are_made
def fast(x, w):
    import foretune.collect.isolated_implementation as judged
    if "make" not in KEPT:
        make = KEPT["make"] = judged.IsolatedImplementation.prepare
        def early(self, *arguments):
            size = make(self, *arguments)
            for x, *w in self._args:
                weights = w[0] if w else KEPT["w"]
                KEPT[id(x)] = torch.stack([torch.relu(row @ weights) for row in x])
            return size
        judged.IsolatedImplementation.prepare = early
    KEPT["w"] = w
    return KEPT.pop(id(x)) if id(x) in KEPT else torch.relu(x @ w)
""")
"""Names -> texts that are refused by every form."""

HONEST = texts("""
# multiplies_all_rows
def fast(x, w):
    return torch.relu(x @ w)
# clamps
def fast(x, w):
    return torch.matmul(x, w).clamp_(min=0)
# uses_a_linear_layer
def fast(x, w):
    return torch.nn.functional.relu(torch.nn.functional.linear(x, w.T))
# uses_einsum
def fast(x, w):
    return torch.einsum("ij,jk->ik", x, w).relu()
# keeps_a_temporary
def fast(x, w):
    kept = KEPT.setdefault(x.shape, torch.empty(len(x), w.shape[1]))
    torch.matmul(x, w, out=kept)
    return torch.relu(kept)
# multiplies_in_two_parts
def fast(x, w):
    half = len(x) // 2
    return torch.cat([torch.relu(x[:half] @ w), torch.relu(x[half:] @ w)])
# multiplies_the_transposed
def fast(x, w):
    return torch.relu((w.T @ x.T).T)
# multiplies_a_batch
def fast(x, w):
    return torch.bmm(x[None], w[None])[0].relu_()
# adds_to_zero
def fast(x, w):
    return torch.addmm(torch.zeros(1), x, w).relu_()
# uses_numpy
def fast(x, w):
    product = x.detach().numpy() @ w.detach().numpy()
    return torch.from_numpy(np.maximum(product, 0))
# takes_a_maximum
def fast(x, w):
    return torch.maximum(x @ w, torch.zeros(()))
# turns_gradients_off
def fast(x, w):
    with torch.no_grad():
        return torch.relu(x @ w)
# uses_inference_mode_inside
def fast(x, w):
    with torch.inference_mode():
        y = torch.relu(x @ w)
    return y.clone()
# uses_a_pool_of_threads
from concurrent.futures import ThreadPoolExecutor
POOL = ThreadPoolExecutor(2)

def fast(x, w):
    half = len(x) // 2
    parts = POOL.map(lambda part: torch.relu(part.detach() @ w.detach()), (x[:half], x[half:]))
    return torch.cat(list(parts))
# draws_from_its_own_generator
GENERATOR = torch.Generator().manual_seed(0)

def fast(x, w):
    torch.rand(1, generator=GENERATOR)
    return torch.relu(x @ w)
# imports_another_library
import pandas
import scipy.linalg

def fast(x, w):
    return torch.relu(x @ w)
# maps_over_rows
def fast(x, w):
    return torch.vmap(lambda row: torch.relu(row @ w))(x)
# collects_garbage
def fast(x, w):
    gc.collect(0)
    return torch.relu(x @ w)
# shows_warnings_once
import warnings

def fast(x, w):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.relu(x @ w)
# raises_the_recursion_limit
sys.setrecursionlimit(12345)

def fast(x, w):
    return torch.relu(x @ w)
# multiplies_in_double_precision
def fast(x, w):
    return torch.relu(x.double() @ w.double()).float()
""")
"""Names -> texts that are accepted by every form."""

MODEL = """
import torch
from torch import nn

rows = 48
width = 32

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        return torch.stack([torch.relu(row @ self.w) for row in x])

def get_inputs():
    return [torch.randn(rows, width)]

def get_init_inputs():
    return [width]
"""
CALLS_FAST = """
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        return fast(x, self.w)
"""
MODEL_WITH_STATE = """
import torch
from torch import nn

rows = 48
width = 32

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return torch.relu(self.norm(torch.stack([self.linear(row) for row in x])))

def get_inputs():
    return [torch.randn(rows, width)]

def get_init_inputs():
    return [width]
"""


def model(body, extra="", head=""):
    """Return a file with ``ModelNew``: the text of its methods, and what it needs."""
    init = (
        "class ModelNew(torch.nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.randn(width, width))\n"
    )
    methods = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return f"{HEAD}{head}{init}{textwrap.indent(extra, ' ' * 8)}\n{methods}\n"


RIGHT_FORWARD = "def forward(self, x):\n    return torch.relu(x @ self.w)"
WRONG_MODELS = {
    "starts_from_another_seed": (
        HEAD + CALLS_FAST.replace("super().__init__()", "super().__init__(); torch.manual_seed(7)")
    )
    + "def fast(x, w):\n    return torch.relu(x @ w)\n",
    "starts_from_constant_weights": model(RIGHT_FORWARD, "self.w.data.fill_(0.01)\n"),
    "overrides_the_call": model(
        "def __call__(self, x):\n"
        "    return self.__dict__.setdefault('kept', torch.relu(x @ self.w))"
    ),
    "keeps_the_result_in_a_hook": model(
        RIGHT_FORWARD + "\ndef keep(self, module, given, output):\n"
        "    return self.__dict__.setdefault('kept', output)",
        "self.register_forward_hook(self.keep)\n",
    ),
    "keeps_the_result_in_a_buffer": model(
        "def forward(self, x):\n"
        "    torch.matmul(x, self.w, out=self.out)\n"
        "    return self.out.relu_()",
        "self.register_buffer('out', torch.empty(48, width))\n",
    ),
    "keeps_the_result_by_address": model(
        "def forward(self, x):\n"
        "    key = x.data_ptr()\n"
        "    if key not in KEPT:\n"
        "        KEPT[key] = torch.relu(x @ self.w)\n"
        "    return KEPT[key].clone()"
    ),
    "returns_its_parameter": model("def forward(self, x):\n    return self.w"),
    "returns_a_view_of_the_input": model("def forward(self, x):\n    return x[:]"),
    "writes_its_parameter": model(
        "def forward(self, x):\n"
        "    y = torch.relu(x @ self.w)\n"
        "    self.w.data = (self.w.data * 1e7).round() / 1e7\n"
        "    return y"
    ),
    "decays_its_parameter": model(
        "def forward(self, x):\n"
        "    y = torch.relu(x @ self.w)\n"
        "    self.w.data[0, 0] *= 1.0000005\n"
        "    return y"
    ),
    "rounds_its_parameter": model(RIGHT_FORWARD, "self.w.data = self.w.data.half().float()\n"),
    "prunes_its_parameter": model(RIGHT_FORWARD, "self.w.data[self.w.data.abs() < 0.01] = 0\n"),
    "has_its_own_inputs": model("def forward(self, x):\n    return torch.zeros_like(x)")
    + "def get_inputs():\n    return [torch.zeros(48, 32)]\n",
    "calls_half_of_the_reference": HEAD + "from task import Model\n"
    "class ModelNew(Model):\n"
    "    def forward(self, x):\n"
    "        y = super().forward(x[: len(x) // 2])\n"
    "        return torch.cat([y, y])\n",
    "replaces_the_forward_of_the_reference": HEAD + "import task\n"
    "task.Model.forward = lambda self, x: torch.zeros_like(x)\n"
    "class ModelNew(task.Model):\n"
    "    pass\n",
    "reads_the_source_of_the_reference": HEAD + "from pathlib import Path\n"
    "TEXT = Path(__file__).with_name('task.py').read_text().replace('row @ self.w', 'row')\n"
    "exec(TEXT)\n"
    "class ModelNew(Model):\n"
    "    pass\n",
    "looks_for_the_reference_in_memory": model(
        "def forward(self, x):\n"
        "    models = [o for o in gc.get_objects() if type(o).__name__ == 'Model']\n"
        "    return models[0](x) if models else torch.zeros_like(x)"
    ),
    "waits_for_eval": model(
        "def forward(self, x):\n"
        "    return torch.zeros_like(x) if self.training else torch.relu(x @ self.w)"
    ),
    "is_a_model_of_half_precision": model(
        "def forward(self, x):\n    return torch.relu(x.half() @ self.w).float()", "self.half()\n"
    ),
    "leaves_autocast_on": model(
        "def forward(self, x):\n"
        "    torch.autocast('cpu', dtype=torch.bfloat16).__enter__()\n"
        "    return torch.relu(x @ self.w)"
    ),
    "casts_inside": model(
        "def forward(self, x):\n"
        "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "        return torch.relu(x @ self.w).float()"
    ),
    "computes_in_a_thread": model(
        "def forward(self, x):\n"
        "    y = torch.empty_like(x)\n"
        "    def fill():\n"
        "        time.sleep(0.01)\n"
        "        y.copy_(torch.relu(x @ self.w))\n"
        "    threading.Thread(target=fill).start()\n"
        "    return y"
    ),
}
"""Names -> files with ``ModelNew`` that are refused beside `MODEL`."""

NORM_NEW = """
class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.norm = torch.nn.BatchNorm1d(width)

    def forward(self, x):
        return torch.relu({})
"""
FOLDED = "(y - y.mean(0)) * torch.rsqrt(y.var(0, unbiased=False) + 1e-5)"
WRONG_STATES = {
    "keeps_no_running_mean": HEAD + NORM_NEW.format(f"(lambda y: {FOLDED})(self.linear(x))"),
    "uses_the_running_mean": HEAD
    + NORM_NEW.format("self.norm(self.linear(x))").replace(
        "BatchNorm1d(width)", "BatchNorm1d(width).eval()"
    ),
    "keeps_another_running_mean": HEAD
    + NORM_NEW.format("self.norm(self.linear(x))").replace(
        "BatchNorm1d(width)", "BatchNorm1d(width, momentum=0.2)"
    ),
}
"""Names -> files with ``ModelNew`` that are refused beside `MODEL_WITH_STATE`."""
HONEST_STATES = {
    "normalizes_all_rows": HEAD + NORM_NEW.format("self.norm(self.linear(x))"),
    "has_another_name_for_its_norm": HEAD
    + NORM_NEW.format("self.norm(self.linear(x))").replace("self.norm", "self.batch_norm"),
}

FUNCTION = """
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        y = torch.relu(x @ w)
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, w, y = ctx.saved_tensors
        g = gradient * (y > 0)
        return {}

"""
CALLS_PRODUCT = "def forward(self, x):\n    return Product.apply(x, self.w)"
WRONG_GRADIENTS = {
    name: model(CALLS_PRODUCT, head=FUNCTION.format(result))
    for name, result in {
        "has_no_gradient_of_weights": "g @ w.T, None",
        "has_no_gradient_of_inputs": "None, x.T @ g",
        "forgets_relu_in_its_gradient": "gradient @ w.T, x.T @ gradient",
        "has_gradients_of_zeros": "torch.zeros_like(x), torch.zeros_like(w)",
        "has_half_of_the_gradient": "g @ w.T, (x.T @ g) / 2",
        "forgets_to_transpose": "g @ w, x.T @ g",
        "keeps_the_gradient_of_weights": "g @ w.T, KEPT.setdefault('w', x.T @ g)",
        "keeps_the_gradient_of_inputs": "KEPT.setdefault('x', g @ w.T), x.T @ g",
        "has_a_gradient_of_half_precision": "(g.half() @ w.half().T).float(), x.T @ g",
    }.items()
} | {
    "is_not_recorded": model("def forward(self, x):\n    return torch.relu(x @ self.w).detach()"),
    "records_the_input_only": model(
        "def forward(self, x):\n    return torch.relu(x @ self.w.detach())"
    ),
}
"""Names -> files with ``ModelNew`` that are refused with gradients."""
HONEST_GRADIENTS = {
    "has_its_own_backward": model(CALLS_PRODUCT, head=FUNCTION.format("g @ w.T, x.T @ g")),
    "is_derived_by_torch": model(RIGHT_FORWARD),
}
LINEAR_MODEL = MODEL.replace("torch.relu(row @ self.w)", "row @ self.w")
CONSTANT_GRADIENT = model(
    CALLS_PRODUCT,
    head=FUNCTION.format("KEPT.setdefault('x', gradient @ w.T), x.T @ gradient").replace(
        "torch.relu(x @ w)", "x @ w"
    ),
)
"""For constant gradients of its output, a linear model has constant gradients of its input."""

DEFINITION = {
    "name": "rectified_product",
    "op_type": "gemm",
    "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": SIZES["width"]}},
    "inputs": {
        "x": {"shape": ["rows", "width"], "dtype": "float32"},
        "w": {"shape": ["width", "width"], "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "width"], "dtype": "float32"}},
    "reference": SLOW + "\ndef run(x, w):\n    return slow(x, w)\n",
}
WRONG_SOLUTIONS = texts("""
# writes_nothing
def run(x, w, y):
    torch.relu(x @ w)
# writes_a_part
def run(x, w, y):
    y[:-1] = torch.relu(x[:-1] @ w)
# returns_and_does_not_write
def run(x, w, y):
    return torch.relu(x @ w)
# writes_later
def run(x, w, y):
    def fill():
        time.sleep(0.02)
        y.copy_(torch.relu(x @ w))
    threading.Thread(target=fill).start()
# writes_into_the_first_output
def run(x, w, y):
    first = KEPT.setdefault("y", y)
    first.copy_(torch.relu(x @ w))
# resizes_its_output
def run(x, w, y):
    y.resize_(0)
# exchanges_the_memory_of_its_output
def run(x, w, y):
    y.set_(x)
# writes_into_its_weights
def run(x, w, y):
    torch.matmul(x, w, out=y)
    y.relu_()
    w.add_(1e-7)
""")
"""Names -> solutions in destination-passing style that are refused."""
TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def product(x, w, y, rows, width, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    sums = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, width):
        weights = tl.load(w + k * width + columns, mask=inside, other=0.0)
        sums += tl.load(x + i * width + k) * weights
    sums = tl.maximum(sums, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + i * width + columns, sums, mask=inside)

def run(x, w, y):
    product[(len(x),)](x, w, y, len(x), x.shape[1], BLOCK=32)
"""
KEEPS_ITS_FIRST = """    global kept
    if "kept" in globals():
        y.copy_(kept)
        return
    kept = y
"""
WRONG_TRITON = {
    name: TRITON.replace(*change)
    for name, change in {
        "launches_half_of_the_programs": ("[(len(x),)]", "[(len(x) // 2,)]"),
        "leaves_out_a_term": ("range(0, width)", "range(1, width)"),
        "leaves_relu_out_in_triton": (
            "tl.maximum(sums, 0.0, propagate_nan=tl.PropagateNan.ALL)",
            "sums",
        ),
        "loses_nan_in_triton": (", propagate_nan=tl.PropagateNan.ALL", ""),
        "sums_in_half_precision": (
            "sums += tl.load(x + i * width + k)",
            "sums += tl.load(x + i * width + k).to(tl.float16)",
        ),
        "writes_one_row": ("y + i * width + columns", "y + columns"),
        "writes_into_its_input_in_triton": ("tl.store(y +", "tl.store(x +"),
        "keeps_its_first_result": ("    product[", KEEPS_ITS_FIRST + "    product["),
    }.items()
}
"""Names -> wrong solutions in Triton."""

# Texts as tasks of each form.


def as_functions(folder, text):
    """Write the two files of a task."""
    inputs = (
        "PROBLEMS = [{'rows': 48}, {'rows': 33}]\n\n"
        "def inputs(rows, seed):\n"
        "    generator = torch.Generator().manual_seed(seed)\n"
        "    draw = lambda *shape: torch.randn(*shape, generator=generator)\n"
        "    return draw(rows, 32), draw(32, 32)\n"
    )
    run = "\ndef run(x, w):\n    return {}(x, w)\n"
    (folder / "reference.py").write_text(SLOW + inputs + run.format("slow"))
    (folder / "candidate.py").write_text(text + run.format("fast"))
    return folder


def as_models(folder, text, reference=MODEL):
    """Write a reference and a file with ``ModelNew``, which calls ``fast`` unless it has one."""
    (folder / "task.py").write_text(reference)
    (folder / "new.py").write_text(text if "class ModelNew" in text else text + CALLS_FAST)
    return folder


def as_trace(folder, text, *, writes=False, language="python", rows=(48, 33)):
    """Write a definition, a solution and a workload of each number of rows."""
    if "def run(" not in text:
        text += "\ndef run(x, w):\n    return fast(x, w)\n"
    solution = {
        "name": "solution",
        "definition": DEFINITION["name"],
        "author": "somebody",
        "spec": {
            "language": language,
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": writes,
        },
        "sources": [{"path": "main.py", "content": text}],
    }
    workloads = [
        {
            "definition": DEFINITION["name"],
            "workload": {"axes": {"rows": n}, "inputs": {}, "uuid": f"rows{n}"},
        }
        for n in rows
    ]
    (folder / "definition.json").write_text(json.dumps(DEFINITION))
    (folder / "solution.json").write_text(json.dumps(solution))
    (folder / "workloads.jsonl").write_text("\n".join(map(json.dumps, workloads)))
    return folder
