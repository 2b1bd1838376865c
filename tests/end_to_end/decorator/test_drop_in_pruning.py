"""`prune_configs_by`: arguments of the user's functions and the remaining list; as in Triton."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from triton.runtime.errors import AutotunerError
from tuned_kernels import NEWEST, best_is, blocks_of, configs

BLOCKS = (16, 32, 64, 128, 256)


@pytest.fixture
def decorate(autotune, driver):
    def decorate(**prune_configs_by):
        return autotune(configs(*BLOCKS), ["n"], prune_configs_by=prune_configs_by)(
            triton.jit(tuned_kernels.copy)
        )

    return decorate


def measured(driver):
    return set(blocks_of(driver.launches))


def test_the_first_pruning_sees_configurations_arguments_and_call(decorate, driver, tensors):
    calls = []

    def prune(*args, **kwargs):
        calls.append((args, kwargs))
        return args[0][:2]

    tuned = decorate(early_config_prune=prune)
    tuned[(1,)](tensors[0], tensors[1], n=64)
    (((listed, named), kwargs),) = calls
    assert listed is tuned.configs
    assert set(named) == {"x", "y"}
    assert named["x"] is tensors[0]
    assert kwargs == {"n": 64, "grid": (1,), "warmup": False}
    assert measured(driver) == {16, 32}
    assert list(tuned.configs_timings) == tuned.configs[:2]


def test_a_known_problem_is_not_pruned_again(decorate, driver, tensors):
    calls = []

    def prune(configs, named, **kwargs):
        calls.append(named["n"])
        return configs[:2]

    tuned = decorate(early_config_prune=prune)
    for n in (64, 64, 65, 64, 65):
        tuned[(1,)](*tensors, n)
    assert calls == [64, 65]


def test_pruning_may_return_other_configurations(decorate, driver, tensors):
    own = configs(512, 1024)
    driver.times = best_is(1024)
    tuned = decorate(early_config_prune=lambda configs, named, **kwargs: own)
    tuned[(1,)](*tensors, 64)
    assert measured(driver) == {512, 1024}
    assert tuned.best_config is own[1]


@pytest.mark.parametrize("nothing", [[], None, ()])
def test_pruning_everything_is_an_error(decorate, driver, tensors, nothing):
    tuned = decorate(early_config_prune=lambda configs, named, **kwargs: nothing)
    with pytest.raises(AutotunerError, match="No valid autotuner configs after pruning"):
        tuned[(1,)](*tensors, 64)
    assert driver.launches == []


def test_a_model_sees_arguments_call_and_configuration(decorate, driver, tensors):
    calls = []

    def model(**kwargs):
        calls.append(kwargs)
        return kwargs["BLOCK"]

    tuned = decorate(perf_model=model, top_k=2)
    tuned[(1,)](tensors[0], tensors[1], n=64)
    assert [call["BLOCK"] for call in calls] == list(BLOCKS)
    assert set(calls[0]) == {
        "x",
        "y",
        "n",
        "grid",
        "warmup",
        "BLOCK",
        "num_warps",
        "num_ctas",
        "num_stages",
    }
    assert calls[0]["x"] is tensors[0]
    assert measured(driver) == {16, 32}


@pytest.mark.parametrize(
    ("top_k", "kept"),
    [
        (2, {16, 32}),
        (0.4, {16, 32}),
        (0.59, {16, 32}),
        (1.0, set(BLOCKS)),
        (5, set(BLOCKS)),
        (50, set(BLOCKS)),
    ],
)
def test_the_smallest_predictions_are_kept(decorate, driver, tensors, top_k, kept):
    tuned = decorate(perf_model=lambda BLOCK, **_: BLOCK, top_k=top_k)
    tuned[(1,)](*tensors, 64)
    assert measured(driver) == kept


def test_without_a_number_all_are_kept_and_none_is_predicted(decorate, driver, tensors):
    calls = []
    tuned = decorate(perf_model=lambda **kwargs: calls.append(kwargs))
    tuned[(1,)](*tensors, 64)
    assert measured(driver) == set(BLOCKS)
    assert calls == []


@pytest.mark.parametrize("top_k", [1.5, "2", None, [2]])
def test_a_number_that_is_none_is_refused(decorate, driver, tensors, top_k):
    tuned = decorate(perf_model=lambda BLOCK, **_: BLOCK, top_k=top_k)
    with pytest.raises(TypeError, match="top_k must be either"):
        tuned[(1,)](*tensors, 64)


def newest(blocks, top_k):
    """Return what the newest Triton measures and chooses if larger blocks are predicted faster."""
    many = max(1, int(len(blocks) * top_k)) if isinstance(top_k, float) else top_k
    kept = sorted(blocks, reverse=True)[:many] if len(blocks) > many else list(blocks)
    best = 256 if 256 in kept else kept[0]
    return best, [*kept, best] if len(kept) > 1 else [best]  # one survivor is not measured


@pytest.mark.parametrize("top_k", [0.01, 0.4, 0.5, 1])
@pytest.mark.parametrize("early", [slice(None), slice(1, 4), slice(2, 3)])
def test_both_together_prune_as_in_triton(autotune, driver, tensors, early, top_k):
    """Of which list a share is taken, and whether one survivor is measured, depends on its age."""

    def outcome(decorator):
        driver.launches.clear()
        rules = {
            "early_config_prune": lambda configs, named, **kwargs: configs[early],
            "perf_model": lambda BLOCK, **_: -BLOCK,
            "top_k": top_k,
        }
        tuned = decorator(configs(*BLOCKS), ["n"], prune_configs_by=rules)(
            triton.jit(tuned_kernels.copy)
        )
        try:
            tuned[(1,)](*tensors, 64)
        except ValueError:  # older ones may prune everything
            return ValueError
        return tuned.best_config.kwargs["BLOCK"], blocks_of(driver.launches)

    as_newest = newest(BLOCKS[early], top_k)
    if NEWEST:
        assert outcome(triton.autotune) == as_newest
    assert outcome(autotune) in (as_newest, outcome(triton.autotune))


def test_an_error_of_the_users_function_comes_out(decorate, driver, tensors):
    def prune(configs, named, **kwargs):
        raise ZeroDivisionError("scripted")

    tuned = decorate(early_config_prune=prune)
    with pytest.raises(ZeroDivisionError):
        tuned[(1,)](*tensors, 64)
    assert driver.launches == []


def test_rules_can_be_changed_later(decorate, driver, tensors):
    tuned = decorate()
    tuned.early_config_prune = lambda configs, named, **kwargs: configs[:4]
    tuned.perf_model, tuned.configs_top_k = (lambda BLOCK, **_: -BLOCK), 2
    tuned[(1,)](*tensors, 64)
    assert measured(driver) == {64, 128}


def test_nothing_of_ours_is_installed_as_a_rule(decorate, driver, tensors):
    """Compilers of whole programs trace these and would fail on ours."""
    tuned = decorate()
    tuned[(1,)](*tensors, 64)
    assert tuned.early_config_prune is None
    assert tuned.perf_model is None


def test_warming_up_prunes_too(decorate, driver, tensors):
    tuned = decorate(early_config_prune=lambda configs, named, **kwargs: configs[:2])
    assert len(tuned.warmup(*tensors, 64, grid=(1,))) == 2


def test_pruning_can_be_asked_for(decorate, tensors):
    tuned = decorate(early_config_prune=lambda configs, named, **kwargs: configs[: named["n"]])
    tuned.nargs = {"x": tensors[0], "y": tensors[1], "n": 3}
    assert tuned.prune_configs({"grid": (1,)}) == tuned.configs[:3]
