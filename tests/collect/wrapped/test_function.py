"""Functions as kernels: inputs are fresh, outputs are checked, whatever way they are given back."""

import functools
from collections import namedtuple

import numpy as np
import pytest

from foretune.collect import InProcessRunner, Timing
from foretune.collect.wrapped.function import FunctionKernel
from foretune.device import Device
from foretune.errors import ForetuneError, ForetuneWarning, MeasurementError, UsageError
from foretune.measurement import Status
from foretune.problem import Problem
from foretune.space import Configuration

DEVICE = Device("This CPU", "cpu", specs={"cores": 2.0})
TIMING = Timing(max_seconds=0.02, warmup_s=0.001)
X = np.arange(100.0)


def measured(kernel, runner=None, **config):
    runner = runner or InProcessRunner(DEVICE, TIMING)
    (m,) = runner.run(kernel, kernel.problem(), [Configuration(config)])
    return m


def returning(x, block=4, wrong=False):
    return x * (2 + wrong)


def listing(x, block=4, wrong=False):
    return [x.sum(), 1.0 + wrong]


def writing(x, out, block=4, wrong=False):
    out[:] = x * (2 + wrong)


def adding(x, out, block=4, wrong=False):
    out += x * (2 + wrong)


Sums = namedtuple("Sums", "all number")


def naming(x, out, block=4, wrong=False):
    out += x * (2 + wrong)
    return Sums(out, 1)


def sorting(xs, block=4, wrong=False):
    xs.sort(reverse=wrong)


def forgetting(x, out, block=4, wrong=False):
    if not wrong:
        out[:] = x


CASES = {
    "returning": (returning, (X,)),
    "listing": (listing, (X,)),
    "writing": (writing, (X, np.zeros(100))),
    "adding": (adding, (X, np.ones(100))),
    "naming": (naming, (X, np.ones(100))),
    "sorting": (sorting, ([3, 1, 2],)),
    "forgetting": (forgetting, (X, np.zeros(100))),
}
KNOBS = {"block": [1, 4], "wrong": [False, True]}


@pytest.mark.parametrize("name", CASES)
def test_right_and_wrong_outputs_are_told_apart(name):
    function, args = CASES[name]
    kernel = FunctionKernel(function, KNOBS, args)
    assert kernel.default(kernel.problem()) == {"block": 4, "wrong": False}
    right, wrong = (measured(kernel, block=1, wrong=w) for w in (False, True))
    assert right.ok, right.error
    assert right.time_ms > 0
    assert wrong.status is Status.WRONG_RESULT
    assert measured(kernel, block=4, wrong=False).ok, "the arguments are as they were"


def test_the_arguments_given_are_never_written_into():
    out = np.ones(100)
    assert measured(FunctionKernel(adding, KNOBS, (X, out)), block=1, wrong=False).ok
    assert (out == 1).all()


@pytest.mark.parametrize(
    ("function", "args", "check"),
    [
        (returning, (X,), lambda x: x + x),
        (returning, (X,), X * 2),
        (writing, (X, np.zeros(100)), lambda x, out: x + x),
        (writing, (X, np.zeros(100)), lambda x, out: np.add(x, x, out=out) is None or None),
        (writing, (X, np.zeros(100)), X * 2),
    ],
)
def test_a_check_is_a_function_or_the_output(function, args, check):
    kernel = FunctionKernel(function, KNOBS, args, check=check)
    assert measured(kernel, block=1, wrong=False).ok
    assert measured(kernel, block=1, wrong=True).status is Status.WRONG_RESULT


def test_what_is_sorted_in_place_is_unsorted_before_every_timed_call():
    seen = []

    def spy(xs, block=1):
        seen.append(list(xs))
        xs.sort()

    assert measured(FunctionKernel(spy, {"block": [1, 2]}, ([2, 1],)), block=2).ok
    calls = [xs for xs in seen if xs != [0, 0]]  # but for the one that finds this out
    assert len(calls) > 5
    assert all(xs == [2, 1] for xs in calls)


def test_an_output_that_is_only_written_is_not_put_back():
    seen = []

    def spy(x, out, block=1):
        seen.append(out[0])
        out[:] = x + 1

    assert measured(FunctionKernel(spy, {"block": [1, 2]}, (X, np.zeros(100))), block=2).ok
    assert seen[-3:] == [1, 1, 1]


def test_places_that_are_never_written_do_not_count():
    """The border of a stencil's output keeps what it holds."""
    seen = []

    def spy(x, out, block=1):
        seen.append(out[1])
        out[1:-1] = x[1:-1] + 1

    out = np.full(100, 7.0)
    assert measured(FunctionKernel(spy, {"block": [1, 2]}, (X, out)), block=2).ok
    assert seen[-3:] == [2, 2, 2], "nothing was put back"


def test_outputs_that_cannot_be_compared_need_a_judge():
    kernel = FunctionKernel(lambda x, block=1: functools.partial(len), {"block": [1, 2]}, (X,))
    with pytest.raises(MeasurementError, match=r"cannot be compared .* function that judges"):
        measured(kernel, block=2)
    kernel.verify = lambda right, got: right.func is got.func
    assert measured(kernel, block=2).ok


def test_an_answer_that_changes_from_call_to_call_is_refused():
    rng = np.random.default_rng(0)
    kernel = FunctionKernel(lambda x, block=1: x + rng.random(), {"block": [1, 2]}, (X,))
    with pytest.raises(MeasurementError, match="fix its seed, or give a function"):
        measured(kernel, block=2)
    kernel = FunctionKernel(
        lambda x, block=1: x + rng.random(),
        {"block": [1, 2]},
        (X,),
        verify=lambda right, got: np.allclose(right, got, atol=1),
    )
    assert measured(kernel, block=2).ok


def test_verify_may_refuse():
    kernel = FunctionKernel(returning, KNOBS, (X,), verify=lambda right, got: False)
    refused = measured(kernel, block=1, wrong=False)
    assert (refused.status, refused.error) == (Status.WRONG_RESULT, "verify rejects the output")


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (lambda x, block=1: None, (X,), "it must do one of the two"),
        (lambda x, block=1: 1 / 0, (X,), "division by zero; give another default"),
    ],
)
def test_a_default_that_is_no_measure_is_an_error(function, args, message):
    with pytest.raises(MeasurementError, match=message):
        measured(FunctionKernel(function, {"block": [1, 2]}, args), block=2)


def test_a_knob_that_the_function_does_not_take():
    with pytest.raises(UsageError, match=r"takes no argument 'tile': add it to returning\(x, blo"):
        FunctionKernel(returning, {"tile": [1, 2]}, (X,))
    with pytest.raises(UsageError, match="has no knobs"):
        FunctionKernel(returning, {}, (X,))
    FunctionKernel(lambda **any_knob: None, {"tile": [1]})


def test_inputs_of_sizes():
    def inputs(N=64, dtype="float32", seed=0):
        return (np.random.default_rng(seed).random(N).astype(dtype),)

    kernel = FunctionKernel(returning, KNOBS, inputs)
    assert kernel.problem(N=8) == {"N": 8, "dtype": "float32"}
    (x,) = kernel.make_inputs(kernel.problem(N=8), seed=3)["args"]
    assert (x.shape, x.dtype) == ((8,), np.float32)
    drawn = [p["N"] for p in kernel.training_problems(20)]
    assert len(set(drawn)) == 20
    assert 16 <= min(drawn) < 32 < 64 < max(drawn) <= 128

    def without(N):
        return (np.ones(N),)

    with pytest.raises(UsageError, match="no default N"):
        FunctionKernel(returning, KNOBS, without).training_problems(2)


def test_restrictions_of_one_mapping_or_of_knobs():
    rules = [lambda p: p["block"] > 1 or not p["wrong"], lambda block: block < 4, "block >= 1"]
    kernel = FunctionKernel(
        returning, KNOBS, (X,), restrictions=rules, default={"block": 1, "wrong": False}
    )
    assert [dict(c) for c in kernel.space(kernel.problem())] == [{"block": 1, "wrong": False}]


def test_the_code_identifies_it_and_not_its_surroundings():
    def around(inner):
        def a(x, block=1):
            return inner(x)

        return a

    double, triple = around(lambda x: x * 2), around(lambda x: x * 3)
    first = FunctionKernel(double, {"block": [1]}, (X,)).source_hash
    assert FunctionKernel(double, {"block": [1, 2]}, (X * 2,)).source_hash == first
    assert FunctionKernel(triple, {"block": [1]}, (X,)).source_hash != first
    checked = FunctionKernel(double, {"block": [1]}, (X,), check=lambda x: x).source_hash
    assert checked != first, "what was right for one is not for the other"


def test_a_lambda_with_large_arguments_goes_to_another_process(isolated):
    """More than goes with every question; and what it closes over."""
    x, factor = np.arange(1e5), 2.0
    kernel = FunctionKernel(lambda x, block=1: x * factor, {"block": [1, 2]}, (x,), name="large")
    assert isinstance(kernel._pickled, str)
    found = [measured(kernel, isolated, block=b) for b in (1, 2)]
    assert all(m.ok for m in found), found
    assert found[0].environment.endswith(f"large {kernel.source_hash[:8]}")


def test_what_cannot_be_sent_says_so(isolated):
    kernel = FunctionKernel(
        lambda x, block=1: x, {"block": [1, 2]}, (X, (i for i in "no generator"))
    )
    with pytest.raises(MeasurementError, match="give isolated=False"):
        measured(kernel, isolated, block=1)


@pytest.mark.parametrize(
    ("knobs", "restrictions", "args", "message"),
    [
        ({"b": 4}, None, (), "'b' is 4: give a list"),
        ({"b": "abc"}, None, (), "'b' is 'abc': give a list"),
        (["b"], None, (), "give each a name and a list of values"),
        ({"b": [1, 2]}, [3], (), "restriction 3: give an expression"),
        ({"b": [1, 2]}, [lambda p: p["nope"] > 1], (), "fails for b=1: KeyError"),
        ({"b": [1, 2]}, [lambda b: 1 / (b - 1) > 0], (), "fails for b=1: ZeroDivisionError"),
        ({"b": [1, 2]}, None, np.ones(3), r"write args=\(x,\)"),
    ],
)
def test_what_cannot_be_meant_is_one_line(knobs, restrictions, args, message):
    def function(*args, b=1):
        return 0.0

    with pytest.raises(ForetuneError, match=message):
        FunctionKernel(function, knobs, args, restrictions=restrictions).default(Problem())


def test_a_check_that_says_nothing_is_an_error():
    kernel = FunctionKernel(lambda x, b=1: x * b, {"b": [1, 2]}, (2.0,), check=lambda x: None)
    with pytest.raises(MeasurementError, match="returns nothing and writes nothing"):
        kernel.reference(kernel.make_inputs(kernel.problem()))


def test_a_default_of_its_own_that_is_not_in_the_space_is_said():
    def function(x, a=4, b=2):
        return x

    with pytest.warns(ForetuneWarning, match="a=4, b=2, is not among"):
        kernel = FunctionKernel(function, {"a": [1, 4], "b": [2, 4]}, (1,), restrictions=["a < b"])
    assert kernel.default(kernel.problem()) == {"a": 1, "b": 2}


def test_the_default_of_a_space_that_cannot_be_listed_is_legal():
    knobs = {f"k{i}": list(range(1, 11)) for i in range(12)}
    kernel = FunctionKernel(lambda x, **k: x, knobs, (1.0,), restrictions=["k5 < k6"])
    default = kernel.default(kernel.problem())
    assert default["k5"] < default["k6"]
    assert kernel.default(kernel.problem()) == default


def test_the_space_is_identified_apart_from_the_code():
    def of(knobs, restrictions=None):
        return FunctionKernel(lambda x, b=1: x, knobs, (1.0,), restrictions=restrictions)

    one, other = of({"b": [1, 2]}), of({"b": [1, 2, 3]})
    assert one.source_hash == other.source_hash
    ids = {of({"b": [1, 2, 3]}, rule).space_id for rule in (None, "b < 3", lambda b: b < 2)}
    assert len({one.space_id, *ids}) == 4
    assert of({"b": [1, 2]}).space_id == one.space_id
