"""Random sequences of calls and of what others do to an autotuner end alike under both."""

from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from replay_driver import ReplayDriver
from triton.runtime.errors import OutOfResources
from tuned_kernels import NEWEST, blocks_of, configs

import foretune

BLOCKS = (16, 32, 64, 128)


@dataclass
class Call:
    """A call of the kernel."""

    n: int
    m: int | None
    single: bool
    by_name: bool

    def do(self, tuned):
        x = torch.zeros(8, dtype=torch.float32 if self.single else torch.float16)
        y = torch.zeros(8)
        more = {} if self.m is None else {"m": self.m}
        grid = lambda meta: (meta["BLOCK"], 1)  # noqa: E731
        if self.by_name:
            tuned[grid](x=x, y=y, n=self.n, **more)
        else:
            tuned[grid](x, y, self.n, *more.values())


@dataclass
class Do:
    """Something done to the autotuner, by its name."""

    what: str
    which: list[int] = field(default_factory=list)

    def do(self, tuned):
        getattr(self, self.what)(tuned, [b for i, b in enumerate(BLOCKS) if i in self.which])

    def clear(self, tuned, blocks):
        tuned.cache.clear()

    def forget_one(self, tuned, blocks):
        if tuned.cache:
            tuned.cache.pop(next(iter(tuned.cache)))

    def overwrite(self, tuned, blocks):
        for key in tuned.cache:
            tuned.cache[key] = tuned.configs[-1]

    def copy_cache(self, tuned, blocks):
        tuned.cache = dict(tuned.cache)

    def prefill(self, tuned, blocks):
        tuned.cache[16, "torch.float16", "torch.float32"] = triton.Config({"BLOCK": 1024})

    def set_configs(self, tuned, blocks):
        tuned.configs = configs(*(blocks or BLOCKS))

    def append(self, tuned, blocks):
        tuned.configs = [*tuned.configs, *configs(*blocks, num_warps=8)]

    def prune(self, tuned, blocks):
        def prune(configs, named, **kwargs):
            kept = [c for c in configs if c.kwargs["BLOCK"] in blocks]
            return kept if len(kept) > (not NEWEST) else configs  # older ones measure a survivor

        tuned.early_config_prune = prune

    def do_not_prune(self, tuned, blocks):
        tuned.early_config_prune = tuned.perf_model = None

    def predict(self, tuned, blocks):
        tuned.perf_model, tuned.configs_top_k = (lambda BLOCK, n, **_: (BLOCK - n) ** 2), 2


actions = (
    "clear",
    "forget_one",
    "overwrite",
    "copy_cache",
    "prefill",
    "set_configs",
    "append",
    "prune",
    "do_not_prune",
    "predict",
)
calls = st.builds(
    Call,
    st.sampled_from([1, 16, 17, 64]),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
    st.booleans(),
)
doings = st.builds(
    Do, st.sampled_from(actions), st.lists(st.sampled_from(range(4)), min_size=1, unique=True)
)
tables = st.fixed_dictionaries(
    {b: st.sampled_from([0.5, 1.0, 1.5, 2.0, None]) for b in (*BLOCKS, 1024)}
)


def story(decorator, table, steps):
    """Return what could be seen after each step."""

    def times(launch):
        time_ms = table[launch.config["BLOCK"]]
        if time_ms is None:
            raise OutOfResources(2, 1, "shared memory")
        return time_ms / launch.config["num_warps"] + launch.arguments["n"] % launch.config["BLOCK"]

    tuned = decorator(configs(*BLOCKS), ["n", "m"])(triton.jit(tuned_kernels.copy))
    seen = []
    with ReplayDriver(times).active() as driver:
        for step in steps:
            driver.launches.clear()
            try:
                step.do(tuned)
                error = None
            except (OutOfResources, ValueError) as e:
                error = type(e)
                tuned.cache.clear()  # whether a choice that cannot run is kept differs
            seen.append(
                {
                    "error": error,
                    "best": error or str(getattr(tuned, "best_config", None)),
                    "timings": error
                    or {str(c): t for c, t in getattr(tuned, "configs_timings", {}).items()},
                    "cache": {key: str(config) for key, config in tuned.cache.items()},
                    "launches": error or blocks_of(driver.launches),
                }
            )
    return seen


@settings(max_examples=40, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
@given(tables, st.lists(calls | doings, min_size=1, max_size=12))
def test_every_story_ends_alike(table, steps):
    ours = story(foretune_decorator, table, steps)
    assert ours == story(triton.autotune, table, steps)


def test_names_in_another_order_are_the_same_problem():
    """Stock measures again: its key lists the types of arguments as a call names them."""
    x = torch.zeros(8, dtype=torch.float16)
    y = torch.zeros(8)
    tuned = foretune_decorator(configs(*BLOCKS), ["n"])(triton.jit(tuned_kernels.copy))
    with ReplayDriver(lambda launch: launch.config["BLOCK"] / 16).active() as driver:
        tuned[lambda meta: (1,)](x=x, y=y, n=16)
        driver.launches.clear()
        tuned[lambda meta: (1,)](y=y, x=x, n=16)
        assert blocks_of(driver.launches) == [16]


def foretune_decorator(*args, **kwargs):
    return foretune.autotune(*args, budget="all", store=False, **kwargs)
