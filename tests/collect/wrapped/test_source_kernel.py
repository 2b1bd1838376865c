"""Kernels in C, C++ and OpenCL: compiled, launched, checked and timed by the real thing."""

import math

import numpy as np
import pytest

from foretune.collect import InProcessRunner, Timing
from foretune.collect.wrapped.source import LaunchShape, Source, first_error, read_source
from foretune.collect.wrapped.source_kernel import SourceKernel
from foretune.collect.wrapped.values import copy_arrays
from foretune.device import Device
from foretune.errors import ForetuneWarning, MeasurementError, UsageError
from foretune.measurement import Status
from foretune.space import Configuration

DEVICE = Device("This CPU", "cpu", specs={"cores": 2.0})
TIMING = Timing(max_seconds=0.02, warmup_s=0.001)
N = 1000
A, B = np.arange(N, dtype="f4"), np.ones(N, dtype="f4")

NATIVE = """
void add(float *c, float *a, float *b, int n) {
#if block == 3
    does not compile
#endif
    for (int i = 0; i < n; i += block)
        for (int j = i; j < i + block && j < n; j++)
            c[j] = a[j] + b[j] * (block == 5 ? 2 : 1);
}
"""
OPENCL = """
__kernel void add(__global float *c, __global const float *a, __global const float *b, int n) {
#if block_size_x == 3
    does not compile
#endif
    int i = get_global_id(0);
    if (i < n) c[i] = a[i] + b[i] * (block_size_x == 5 ? 2 : 1);
}
"""


@pytest.fixture(params=["C", pytest.param("OpenCL", marks=pytest.mark.opencl)])
def language(request):
    return request.param


def kernel(language="C", text=None, knobs=None, arguments=None, shape=None, **more):
    own = {n: more.pop(n) for n in ("suffix", "options", "extra_files", "compiler") if n in more}
    knob = "block" if language == "C" else "block_size_x"
    return SourceKernel(
        Source("add", text or {"C": NATIVE, "OpenCL": OPENCL}[language], language, **own),
        shape or LaunchShape(N, (None, None, None), ()),
        arguments or [np.zeros(N, "f4"), A, B, np.int32(N)],
        knobs or {knob: (4, 3, 5, 10, 10**6)},
        **more,
    )


def measured(made, value):
    (m,) = InProcessRunner(DEVICE, TIMING).run(
        made, made.problem(), [Configuration({next(iter(made.knobs)): value})]
    )
    return m


@pytest.mark.parametrize("answer", [None, [A + B, None, None, None]])
def test_right_wrong_and_broken_configurations(language, answer):
    made = kernel(language, answer=answer)
    right = measured(made, 10)
    assert right.ok, right.error
    assert right.relative_error < 1e-6
    assert 0 < right.time_ms < 50
    assert len(right.time_ms_samples) >= 3
    wrong = measured(made, 5)
    assert wrong.status is Status.WRONG_RESULT
    if answer:
        assert "argument 0 differs from its answer: element 0 is 2.0, not 1.0" in wrong.error
    broken = measured(made, 3)
    assert broken.status is Status.COMPILE_ERROR
    assert "error" in broken.error
    if language == "OpenCL":
        assert measured(made, 10**6).status is Status.RUNTIME_ERROR, "no such work group"


def test_arguments_are_described_by_the_sources_names(language):
    problem = kernel(language).problem()
    sizes = {"c": "float32", "c_0": N, "a": "float32", "a_0": N, "b": "float32", "b_0": N, "n": N}
    # The launch size has the name of an argument.
    assert problem == {**sizes, "n_type": "int32", "n_": N}


def test_verify_judges_instead():
    seen = []

    def lenient(answer, output, atol=None):
        seen.append(atol)
        assert [x is None for x in output] == [False, True, True, True]
        return np.abs(answer[0] - output[0]).max() < 2

    assert measured(kernel(answer=[A + B, None, None, None], verify=lenient, atol=0.5), 5).ok
    assert set(seen) == {0.5}
    strict = kernel(answer=[A + B, None, None, None], verify=lambda answer, output: False)
    assert measured(strict, 10).error == "verify rejects the output"


def test_what_is_added_to_is_put_back(language):
    text = {"C": NATIVE, "OpenCL": OPENCL}[language].replace("c[j] =", "c[j] +=")
    text = text.replace("c[i] =", "c[i] +=")
    m = measured(kernel(language, text, answer=[A + B, None, None, None]), 10)
    assert m.ok, m.error


def test_a_function_that_returns_a_float_says_its_own_time():
    text = "float add(float *c) { c[0] = block; return 1e-6f * block; }"
    made = kernel(text=text, arguments=[np.zeros(1, "f4")], verify=lambda right, got: True)
    assert measured(made, 10).time_ms == pytest.approx(1e-5)


def test_c_is_compiled_as_c_and_strings_as_cpp():
    only_c = "void add(float *restrict c) { int class = block; c[0] = class > 0; }"
    arguments = [np.zeros(1, "f4")]
    assert measured(kernel(text=only_c, arguments=arguments, suffix=".c"), 4).ok
    only_cpp = "void add(float *c) { auto x = block; c[0] = x > 0; }"
    assert measured(kernel(text=only_cpp, arguments=arguments), 4).ok
    outside = 'extern "C" void add(float *c) { c[0] = block > 0; }'
    assert measured(kernel(text=outside, arguments=arguments, compiler="g++ -std=c++17"), 4).ok


def test_knobs_in_options_defines_and_other_files(tmp_path):
    text = '#include "other.h"\nvoid add(float *c) { c[0] = LEVEL * 100 + OTHER; }'
    arguments = [np.zeros(1, "f4")]

    def judged(expected, **more):
        made = kernel(
            text=text,
            arguments=arguments,
            knobs={"level": (2, 7)},
            default={"level": 2},
            answer=[np.array([expected], "f4")],
            **more,
        )
        m = measured(made, 7)
        assert m.ok, m.error

    judged(707, options=("-DLEVEL={level}",), extra_files={"other.h": "#define OTHER 7\n"})
    judged(
        714,
        defines={"LEVEL": "level", "OTHER": lambda p: 2 * p["level"]},
        extra_files={"other.h": ""},
    )
    judged(107, options=("-DLEVEL=1",), extra_files={"other.h": "#define OTHER level\n"})


@pytest.mark.parametrize(
    ("size", "divisors", "grid"),
    [
        (100, (None, None, None), (4, 1, 1)),
        ((100, 60), (None, None, None), (4, 15, 1)),
        ((100, "60 * tile"), (["block_size_x", "tile"], ["block_size_y"], []), (2, 30, 1)),
        (lambda p: (p["tile"] * 10, 8), (lambda p: 5, 4, None), (4, 2, 1)),
        (100, ("block_size_x / 2", None, None), (7, 1, 1)),
        ((64, 64, 64), ([], [], []), (64, 64, 64)),
    ],
)
def test_the_grid_is_that_of_kernel_tuner(size, divisors, grid):
    config = {"block_size_x": 32, "block_size_y": 4, "tile": 2}
    assert LaunchShape(size, divisors, ()).grid(config) == grid
    theirs = pytest.importorskip("kernel_tuner.util")
    names = ["block_size_x", "block_size_y", "block_size_z"]
    expected = theirs.get_grid_dimensions(
        theirs.get_problem_size(size, config), config, divisors, names
    )
    assert expected == grid


def test_other_names_for_the_work_group():
    shape = LaunchShape(100, (None, None, None), ["tx"])
    assert shape.threads({"tx": 16}) == (16, 1, 1)
    assert shape.grid({"tx": 16}) == (math.ceil(100 / 16), 1, 1)
    assert LaunchShape(100, (None, None, None), ()).threads({"tile": 3}) == (256, 1, 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"knobs": {"tile": (1, 2)}}, "does not use the knob 'tile'"),
        ({"arguments": [A, 5]}, "argument 1 of add is of type int: give a NumPy array"),
        ({"answer": [A] * 5}, "takes 4 arguments, answer has 5"),
        ({"answer": [None] * 4}, "the answer of add has only None"),
        ({"answer": [None, None, None, np.int32(3)]}, "argument 3 of add is a number"),
        ({"compiler": "no-such-cc"}, "no compiler no-such-cc"),
    ],
)
def test_what_cannot_be_meant_is_one_line(more, message):
    with pytest.raises(UsageError, match=message):
        kernel(**more)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("void add(float *c) { int x = block; }", "changes none of its arguments: also give those"),
        ("void add(float *c) { int x = block }", "error: expected"),
        ("void sub(float *c) { c[0] = block; }", "the source has no function 'add'"),
    ],
)
def test_a_default_that_is_no_measure_is_an_error(text, message):
    with pytest.raises(MeasurementError, match=message):
        measured(kernel(text=text, arguments=[np.zeros(1, "f4")]), 4)


def test_of_a_knob_that_changes_nothing_one_value_counts():
    with pytest.warns(ForetuneWarning, match=r"the knob 'tile': .* a compiler option as \{tile\}"):
        made = kernel(knobs={"block": (4, 10), "tile": (1, 2, 3)})
    assert len(made.space(made.problem())) == 2


@pytest.mark.opencl
def test_no_such_opencl_device():
    from foretune.collect.wrapped.opencl import find_device

    with pytest.raises(UsageError, match="no OpenCL platform 99: choose one of 0"):
        find_device(99)
    with pytest.raises(UsageError, match="no OpenCL device 99: choose one of 0"):
        find_device(0, 99)


def test_a_crash_costs_one_configuration(isolated):
    text = "void add(float *c) { if (block == 5) *(volatile int *)0 = 1; c[0] = 3; }"
    made = kernel(text=text, arguments=[np.zeros(1, "f4")])
    found = list(isolated.run(made, made.problem(), [Configuration(block=b) for b in (5, 4)]))
    assert found[0].status is Status.RUNTIME_ERROR
    assert "SIGSEGV" in found[0].error
    assert found[1].ok


def test_sources_are_texts_files_lists_and_functions(tmp_path):
    (tmp_path / "a.c").write_text("one")
    (tmp_path / "b.h").write_text("two")
    files = [str(tmp_path / name) for name in ("a.c", "b.h")]
    assert read_source("void f() {}") == ("void f() {}", {}, "")
    assert read_source(files) == ("one", {"b.h": "two"}, files[0])
    assert read_source(len)[0] is len
    with pytest.raises(UsageError, match=r"there is no file x\.cl"):
        read_source("x.cl")


def test_the_first_error_of_a_compiler_is_told():
    log = "In function f\na.c:3: warning: x\na.c:4:2: error: expected ';'\nmore"
    assert first_error(log) == "a.c:4:2: error: expected ';'"
    assert first_error("") == "it is empty"


def test_other_seeds_give_other_arguments_unless_the_answer_is_given(language):
    made = kernel(language)
    inputs = copy_arrays(made.make_inputs(made.problem())["arguments"])
    c, a, b, n = made.make_inputs(made.problem(), seed=1)["arguments"]
    assert n == N
    assert (c == 0).all()
    assert not np.array_equal(a, A)
    assert b.min() < 1
    launch = made.build(made.problem(), made.default(made.problem()), {"arguments": inputs})
    before = launch().copy().written[0]
    for target, values in zip(inputs[1:3], (a, b), strict=True):
        target[:] = values
    assert launch().written[0] == pytest.approx(a + b, rel=1e-5)
    assert not np.array_equal(before, a + b)
    answered = kernel(language, answer=[A + B, None, None, None])
    assert answered.make_inputs(answered.problem(), seed=1)["arguments"][1] is answered.arguments[1]
