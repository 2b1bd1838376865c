"""Arguments, defaults and attributes of the decorator, as Triton's own has them."""

import inspect

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from triton.runtime.autotuner import Autotuner
from tuned_kernels import NEWEST, configs

import foretune


def test_arguments_come_in_tritons_order_and_ours_by_keyword_only():
    stock = list(inspect.signature(triton.autotune).parameters.values())
    ours = list(inspect.signature(foretune.autotune).parameters.values())
    assert [p.name for p in ours[: len(stock)]] == [p.name for p in stock]
    assert [p.default for p in ours[: len(stock)]] == [p.default for p in stock]
    assert {p.kind for p in ours[len(stock) :]} == {inspect.Parameter.KEYWORD_ONLY}


def test_the_constructor_takes_tritons_arguments_in_order(autotuner_class):
    stock = list(inspect.signature(Autotuner.__init__).parameters.values())
    found = list(inspect.signature(autotuner_class.__init__).parameters.values())
    assert [(p.name, p.default) for p in found[: len(stock)]] == [
        (p.name, p.default) for p in stock
    ]
    for extra in found[len(stock) :]:
        assert extra.default is not inspect.Parameter.empty


def test_all_arguments_may_be_positional(autotune, driver, tensors):
    def bench(call, quantiles):
        call()
        return [1.0, 1.0, 1.0]

    tuned = autotune(
        configs(128, 256), ["n"], {}, ["y"], ["x"], None, None, None, None, False, bench, False
    )(triton.jit(tuned_kernels.copy))
    tuned[(1,)](*tensors, 64)
    assert (tuned.reset_to_zero, tuned.restore_value) == (["y"], ["x"])
    assert tuned.do_bench is bench
    assert tuned.best_config.kwargs == {"BLOCK": 128}


def test_it_is_an_autotuner_of_tritons(autotune):
    tuned = autotune(configs(128), ["n"])(triton.jit(tuned_kernels.copy))
    assert isinstance(tuned, Autotuner)
    assert isinstance(tuned, triton.KernelInterface)


def test_attributes_before_the_first_call(autotune):
    kernel = triton.jit(tuned_kernels.copy)
    both = configs(128, 256)
    keys = ["n"]
    tuned = autotune(both, keys)(kernel)
    assert tuned.fn is kernel
    assert tuned.base_fn is tuned_kernels.copy
    assert tuned.arg_names == ["x", "y", "n", "m", "BLOCK"]
    assert tuned.configs is both
    assert tuned.keys is keys
    assert tuned.cache == {}
    assert isinstance(tuned.cache, dict)
    assert (tuned.reset_to_zero, tuned.restore_value) == ([], [])
    assert (tuned.perf_model, tuned.configs_top_k, tuned.early_config_prune) == (None, 1.0, None)
    assert (tuned.num_warmups, tuned.num_reps, tuned.use_cuda_graph) == (None, None, False)
    assert (tuned.user_defined_pre_hook, tuned.user_defined_post_hook) == (False, False)
    assert tuned.cache_results is False
    assert tuned.pre_hook({}) == tuned.pre_hook({}, reset_only=True) == 0
    assert tuned.post_hook({}, exception=None) == 0
    for name in ("best_config", "configs_timings", "bench_time"):
        assert not hasattr(tuned, name)


def test_nothing_that_tritons_has_is_missing(autotune, driver, tensors):
    def decorated(decorator):
        kernel = triton.jit(tuned_kernels.copy)
        tuned = decorator(configs(128, 256), ["n"], restore_value=["y"])(kernel)
        tuned[(1,)](*tensors, 64)
        return tuned

    stock = decorated(triton.autotune)
    tuned = decorated(autotune)
    wanted = {name for name in (*vars(stock), *dir(Autotuner)) if not name.startswith("__")}
    assert {name for name in wanted if not hasattr(tuned, name)} == set()
    assert tuned.nargs is stock.nargs is None


@pytest.mark.parametrize("nothing", [[], None, ()])
def test_without_configurations_there_is_one_default(autotune, driver, tensors, nothing):
    tuned = autotune(nothing, [])(triton.jit(tuned_kernels.copy))
    (only,) = tuned.configs
    assert (only.kwargs, only.num_warps, only.num_stages, only.num_ctas) == ({}, 4, 3, 1)
    tuned[(1,)](*tensors, 64)
    assert tuned.best_config is only
    assert driver.launches[0].config["num_warps"] == 4


@pytest.mark.parametrize("argument", ["key", "reset_to_zero", "restore_value"])
def test_unknown_names_are_refused(autotune, argument):
    if autotune is triton.autotune and not NEWEST:
        pytest.skip("this Triton ignores them")
    arguments = {"key": ["n"], argument: ["n", "nonsense", "nothing"]}
    with pytest.raises(ValueError, match=f"{argument} contains names .*: nonsense, nothing. Valid"):
        autotune(configs(128, 256), **arguments)(triton.jit(tuned_kernels.copy))


def test_lists_of_names_are_copied_or_kept_as_triton_does(autotune):
    reset = ("y",)
    restore = ("x",)
    tuned = autotune(configs(128), ("n",), reset_to_zero=reset, restore_value=restore)(
        triton.jit(tuned_kernels.copy)
    )
    assert (tuned.keys, tuned.reset_to_zero, tuned.restore_value) == (("n",), ["y"], ["x"])


@pytest.mark.parametrize(
    ("old", "passed"),
    [
        ({"warmup": 7}, {"warmup": 7, "rep": 100}),
        ({"rep": 9}, {"warmup": 25, "rep": 9}),
        ({"warmup": 7, "rep": 9}, {"warmup": 7, "rep": 9}),
    ],
)
def test_deprecated_times_warn_and_still_reach_the_benchmarker(
    autotune, driver, tensors, monkeypatch, old, passed
):
    calls = []

    def bench(call, **arguments):
        calls.append(arguments)
        return driver.do_bench(call, quantiles=arguments["quantiles"])

    monkeypatch.setattr(triton.testing, "do_bench", bench)
    with pytest.warns(DeprecationWarning, match="warmup, rep, and use_cuda_graph"):
        tuned = autotune(configs(128, 256), ["n"], **old)(triton.jit(tuned_kernels.copy))
    assert (tuned.num_warmups, tuned.num_reps) == (old.get("warmup"), old.get("rep"))
    tuned[(1,)](*tensors, 64)
    assert calls == [{**passed, "quantiles": (0.5, 0.2, 0.8)}] * 2
    assert tuned.best_config.kwargs == {"BLOCK": 256}


@pytest.mark.parametrize(("old", "rep"), [({}, 100), ({"rep": 9}, 9)])
def test_the_deprecated_graph_warns_and_still_captures(
    autotune, driver, tensors, monkeypatch, old, rep
):
    calls = []

    def bench(call, **arguments):
        calls.append(arguments)
        return driver.do_bench(call, quantiles=arguments["quantiles"])

    monkeypatch.setattr(triton.testing, "do_bench_cudagraph", bench)
    with pytest.warns(DeprecationWarning, match="use_cuda_graph"):
        tuned = autotune(configs(128, 256), ["n"], use_cuda_graph=True, **old)(
            triton.jit(tuned_kernels.copy)
        )
    assert tuned.use_cuda_graph is True
    tuned[(1,)](*tensors, 64)
    assert calls == [{"rep": rep, "quantiles": (0.5, 0.2, 0.8)}] * 2
    assert tuned.best_config.kwargs == {"BLOCK": 256}


def test_the_environment_turns_the_disk_cache_on(autotune, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "1")
    assert autotune(configs(128), ["n"])(triton.jit(tuned_kernels.copy)).cache_results
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not autotune(configs(128), ["n"])(triton.jit(tuned_kernels.copy)).cache_results
