"""Shortened lists of torch's Inductor: `tune/triton/inductor.py`."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

from replay_driver import ReplayDriver
from torch._inductor import select_algorithm
from torch._inductor.ir import FixedLayout

import foretune
from foretune.errors import ForetuneWarning, UsageError
from foretune.tune.triton.inductor import InductorChooser, make_operation

TILES = [(m, n) for m in (16, 32, 64, 128) for n in (16, 32, 64, 128)]


@dataclass
class Node:
    """A buffer of Inductor, as far as choices look at it."""

    layout: FixedLayout

    def get_layout(self):
        return self.layout


@dataclass(eq=False)
class Listed:
    """A choice of Inductor's."""

    name: str
    description: str = ""
    sizes: tuple = (1024, 1024, 1024)
    device: str = "cuda:0"
    layout: FixedLayout = field(init=False)
    input_nodes: list = field(init=False)

    def __post_init__(self):
        m, n, k = self.sizes
        a, b, self.layout = (
            FixedLayout(torch.device(self.device), torch.float16, list(s), [s[1], 1])
            for s in ((m, k), (k, n), (m, n))
        )
        self.input_nodes = [Node(a), Node(b)]


def listed(first=0, **more):
    """Return what Inductor lists for a product: a routine, and templates."""
    text = "ACC_TYPE='tl.float32', BLOCK_K=32, BLOCK_M={}, BLOCK_N={}, num_stages=3, num_warps=4"
    templates = [
        Listed(f"triton_mm_{first + i}", text.format(*tile), **more) for i, tile in enumerate(TILES)
    ]
    return [Listed("mm", **more), *templates]


def times(choices, best=(128, 64)):
    """Return milliseconds of choices: the closer to the best tile, the faster."""
    found = {}
    for choice in choices:
        knobs = make_operation([choice]).configs[0]
        apart = sum(
            abs(math.log2(knobs.get(f"BLOCK_{x}", 1) / b)) for x, b in zip("MN", best, strict=True)
        )
        found[choice] = 1.0 + 0.3 * apart
    return found


@pytest.fixture
def driver():
    with ReplayDriver(lambda launch: 1.0, device="NVIDIA A100-SXM4-80GB").active() as active:
        yield active


@pytest.fixture
def store(tmp_path):
    return foretune.Store(tmp_path / "tuned.db")


def test_shorten_keeps_routines_and_few_templates_until_a_choice_is_stored(driver, store):
    chooser = InductorChooser(4, store)
    kept = chooser.shorten(listed())
    assert kept[0].name == "mm"
    assert len(kept) == 5
    chooser.record_timings(times(kept), "mm", None, kept)
    best = min(times(kept), key=times(kept).get)
    again = InductorChooser(4, store).shorten(
        listed(first=100)
    )  # another process counts differently
    assert [c.description for c in again] == [best.description]
    runs = store.runs()
    assert len(runs) == 5
    assert set(runs["kernel"]) == {"inductor_mm"}


def test_shorten_new_list_leaves_out_what_was_timed(driver, store):
    chooser = InductorChooser(4, store)
    kept = chooser.shorten(listed())
    chooser.record_timings(times(kept), "mm", None, kept)
    shorter = listed()[:-1]
    again = InductorChooser(2, store).shorten(shorter)
    assert 3 <= len(again) <= 7


def test_shorten_learns_from_other_problems(driver, store):
    chooser = InductorChooser(4, store)
    for n in (512, 768, 1536, 2048, 3072, 4096, 640, 896, 1280, 2560, 3584, 1792, 1152):
        kept = chooser.shorten(listed(sizes=(1024, n, 1024)))
        chooser.record_timings(times(kept), "mm", None, kept)
    kept = chooser.shorten(listed())
    assert min(times(kept).values()) == 1.0


def test_record_timings_stores_failures(driver, store):
    chooser = InductorChooser(4, store)
    kept = chooser.shorten(listed())
    broken = dict.fromkeys(kept, math.inf)
    chooser.record_timings(broken, "mm", None, kept)
    assert set(store.runs()["status"]) == {"runtime_error"}
    assert len(chooser.shorten(listed())) > 1


def test_shorten_keeps_short_lists(driver, store):
    short = listed()[:4]
    assert InductorChooser(4, store).shorten(short) == short
    assert InductorChooser(4, store).shorten(short[:1]) == short[:1]


def test_operation_dynamic_size_is_inductors_hint():
    from torch._dynamo.source import ConstantSource
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    rows = environment.create_symbol(640, ConstantSource("rows"))
    graph = SimpleNamespace(sizevars=SizeVarAllocator(environment))

    with V.set_graph_handler(graph):
        operation = make_operation(listed(sizes=(rows, 1024, 1024)))

    assert operation.call.problem["output.shape"] == "640×1024"


def test_shorten_unknown_choices_are_left_to_inductor(store):
    odd = [object(), object()]
    with pytest.warns(ForetuneWarning, match="Inductor times all of its choices: AttributeError"):
        assert InductorChooser(4, store).shorten(odd) is odd
    with pytest.warns(ForetuneWarning, match="times of Inductor's mm are not stored"):
        InductorChooser(4, store).record_timings({odd[0]: 1.0}, "mm", None, odd)


def test_patch_inductor_undo_restores_lists(tmp_path):
    asked = select_algorithm.get_algorithm_selector_cache()
    before = list(asked.preprocessing_fns), list(asked.feedback_saver_fns)
    undo = foretune.patch_inductor(store=False)
    assert len(asked.preprocessing_fns) == len(before[0]) + 1
    undo()
    undo()
    assert (asked.preprocessing_fns, asked.feedback_saver_fns) == before
    with pytest.raises(UsageError, match="budget is 0"):
        foretune.patch_inductor(budget=0)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_patch_inductor_second_program_times_nothing(tmp_path, monkeypatch, store):
    """Inductor's own C++ templates, compiled and timed for real; the second time nothing is."""
    import torch._inductor.config as config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    timed = []
    kept = select_algorithm.AlgorithmSelectorCache.benchmark

    def counted(self, choices, *args, **kwargs):
        timed.append(len(choices))
        return kept(self, choices, *args, **kwargs)

    how = {"max_autotune": True, "freezing": True, "max_autotune_gemm_backends": "ATEN,CPP"}
    layer = torch.nn.Linear(64, 128).eval()
    x = torch.randn(32, 64)
    undo = foretune.patch_inductor(store=store)
    try:
        with config.patch(**how, fx_graph_cache=False, autotune_local_cache=False), torch.no_grad():
            monkeypatch.setattr(select_algorithm.AlgorithmSelectorCache, "benchmark", counted)
            first = torch.compile(layer)(x)
            measured = sum(timed)
            torch._dynamo.reset()
            select_algorithm.get_algorithm_selector_cache().cache_clear()
            second = torch.compile(layer)(x)
    finally:
        undo()
        torch._dynamo.reset()
    assert measured == 2
    assert sum(timed) == measured
    torch.testing.assert_close(first, layer(x))
    torch.testing.assert_close(second, first)
    assert len(store.runs()) == 2
