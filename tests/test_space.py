"""Tests search spaces: their configurations, numbers, samples and neighbors: `foretune.space`."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import SpaceError, UsageError
from foretune.space import ABSENT, MAX_VALUES, Configuration, ListedSpace, SearchSpace

RULES = (
    "x * y <= 8",
    "x % 2 == 0 or y > 1",
    "1 < x + z < 9",
    "mode == 'a' or x in (1, 2, 4)",
    "x if flag else y",
    "min(x, y) <= max(z, 2)",
    "not (flag and mode == 'b')",
    "flag + (x > 2) <= 1",
)
PARAMETERS = {
    "x": st.lists(st.integers(0, 8), min_size=1, max_size=4, unique=True),
    "y": st.lists(st.sampled_from([0.5, 1.0, 2.0, 3]), min_size=1, max_size=3, unique=True),
    "z": st.lists(st.integers(-3, 6), min_size=1, max_size=4, unique=True),
    "mode": st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True),
    "flag": st.lists(st.booleans(), min_size=1, max_size=2, unique=True),
}
SPACES = st.tuples(
    st.permutations(list(PARAMETERS)).flatmap(
        lambda names: st.tuples(*(st.tuples(st.just(n), PARAMETERS[n]) for n in names)).map(dict)
    ),
    st.lists(st.sampled_from(RULES), max_size=4, unique=True),
)


def brute_force(parameters, rules):
    everything = (
        dict(zip(parameters, values, strict=True))
        for values in itertools.product(*parameters.values())
    )
    return [c for c in everything if all(eval(rule, {}, dict(c)) for rule in rules)]


def enumerated(parameters, rules, functions=None):
    """Return the space's configurations; a space that has none says so."""
    space = SearchSpace(parameters, functions or rules)
    if brute_force(parameters, rules):
        return list(space)
    with pytest.raises(SpaceError, match="no configuration satisfies"):
        len(space)
    return []


@given(SPACES)
def test_space_lists_legal_configurations_in_order(space):
    assert enumerated(*space) == brute_force(*space)


@given(SPACES)
def test_space_agrees_with_python_constraint(space):
    constraint = pytest.importorskip("constraint")
    parameters, rules = space
    problem = constraint.Problem()
    for name, values in parameters.items():
        problem.addVariable(name, values)
    for rule in rules:  # as functions: its own parser knows neither min nor flag + (x > 2)
        function = eval(f"lambda {', '.join(parameters)}: {rule}")
        problem.addConstraint(constraint.FunctionConstraint(function), list(parameters))
    theirs = {Configuration(c) for c in problem.getSolutions()}
    assert set(enumerated(parameters, rules)) == theirs


@given(SPACES)
def test_space_of_functions_equals_space_of_expressions(space):
    parameters, _ = space
    rules = ["x * y <= 8", "not (flag and mode == 'b')"]
    functions = [lambda x, y: x * y <= 8, lambda mode, flag: not (flag and mode == "b")]
    assert enumerated(parameters, rules) == enumerated(parameters, rules, functions)


@given(SPACES)
def test_space_index_is_inverse_of_item(space):
    parameters, rules = space
    if not brute_force(parameters, rules):
        return
    space = SearchSpace(parameters, rules)
    for number, config in enumerate(space):
        assert space.index(config) == space.index_or_none(dict(config)) == number
        assert config in space
        assert space[number] == config
        assert list(config) == list(parameters)
    illegal = set(map(Configuration, brute_force(parameters, []))) - set(space)
    for config in illegal:
        assert space.index_or_none(config) is None
        assert config not in space


@given(SPACES, st.integers(0, 40), st.integers(0, 3))
def test_sample_is_distinct_and_legal(space, n, seed):
    parameters, rules = space
    legal = brute_force(parameters, rules)
    if not legal:
        return
    space = SearchSpace(parameters, rules)
    drawn = space.sample(n, np.random.default_rng(seed))
    assert len(drawn) == len(set(drawn)) == min(n, len(legal))
    assert all(c in legal for c in drawn)
    assert drawn == space.sample(n, np.random.default_rng(seed))


@given(SPACES)
def test_neighbors_differ_in_one_parameter(space):
    parameters, rules = space
    legal = brute_force(parameters, rules)
    for config in enumerated(parameters, rules)[:5]:
        expected = [c for c in legal if sum(c[n] != config[n] for n in c) == 1]
        near = SearchSpace(parameters, rules).neighbors(config)
        assert set(near) == set(map(Configuration, expected))
        assert len(near) == len(expected)


@given(SPACES)
def test_columns_hold_configurations(space):
    parameters, rules = space
    legal = enumerated(parameters, rules)
    if not legal:
        return
    space = SearchSpace(parameters, rules)
    columns = space.columns()
    assert {n: c.tolist() for n, c in columns.items()} == {
        n: [c[n] for c in legal] for n in columns
    }
    last = space.columns([len(legal) - 1])
    assert {n: c.tolist() for n, c in last.items()} == {n: [legal[-1][n]] for n in columns}


def test_sample_reaches_every_configuration():
    space = SearchSpace({"x": (1, 2, 3), "y": (1, 2)})
    rng = np.random.default_rng(0)
    counts = np.bincount([space.index(space.sample(1, rng)[0]) for _ in range(1200)])
    assert counts.min() > 140  # 200 expected; 4.6 standard deviations
    assert len(counts) == len(space)


def test_space_of_million_configurations_is_numbered():
    parameters = {f"p{i}": tuple(range(10)) for i in range(6)}
    space = SearchSpace(parameters)
    assert len(space) == 10**6
    assert space[123_456] == {f"p{i}": i + 1 for i in range(6)}
    assert space.index(space[999_999]) == 999_999
    ordered = SearchSpace(parameters, ["p0 < p5", "p1 == p2"])
    assert len(ordered) == 45 * 10 * 100  # pairs in order × pairs alike × the other two


def test_space_restrictions_cut_2_to_60_combinations():
    parameters = {f"p{i}": tuple(range(1, 33)) for i in range(12)}  # 2**60 combinations
    rules = [f"p{i} == p{i + 1}" for i in range(11)]
    assert len(SearchSpace(parameters, rules)) == 32


def test_space_values_may_mix_types():
    space = SearchSpace({"s": ("auto", 1, 2.5, False), "n": (1, 2)}, ["s == 'auto' or n == 1"])
    assert len(space) == 5
    assert [c["s"] for c in space] == ["auto", "auto", 1, 2.5, False]
    assert [type(c["s"]) for c in space] == [str, str, int, float, bool]
    assert {"s": "1", "n": 1} not in space
    by_function = SearchSpace(space.parameters, [lambda s, n: s == "auto" or n == 1])
    assert list(by_function) == list(space)


def test_space_values_keep_their_type():
    space = SearchSpace({"i": (1, 2), "f": (0.5, 1.0), "b": (False, True), "mixed": (1, 0.5)})
    assert [type(v) for v in space[0].values()] == [int, float, bool, int]


def test_space_index_takes_equal_values_of_other_types():
    space = SearchSpace({"flag": (False, True), "n": (1, 2)})
    assert space.index({"n": np.int64(2), "flag": 1}) == space.index({"flag": True, "n": 2.0}) == 3


def test_space_numpy_values_become_plain():
    space = SearchSpace({"n": np.arange(3), "x": [np.float32(0.5)]})
    assert space.parameters == {"n": (0, 1, 2), "x": (0.5,)}
    assert {type(v) for values in space.parameters.values() for v in values} == {int, float}


def test_space_without_parameters_has_one_configuration():
    space = SearchSpace({})
    assert list(space) == [Configuration()]
    assert space.index({}) == 0
    assert space.neighbors({}) == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"x": ()}, "parameter 'x' has no values"),
        ({"x": (1, 2, 1)}, "parameter 'x' lists a value twice"),
        ({"x": (1, True)}, "lists a value twice"),
        ({"x": (0, 0.0)}, "lists a value twice"),
        ({"mode": "row"}, r"parameter 'mode' is 'row': give a list"),
        ({"x": 4}, "give a list"),
        ({"x": range(MAX_VALUES + 1)}, "65,537 values"),
    ],
)
def test_space_refuses_malformed_parameters(parameters, message):
    with pytest.raises(SpaceError, match=message):
        SearchSpace(parameters)


@pytest.mark.parametrize("value", [None, float("nan"), [1], (1, 2)])
def test_space_refuses_malformed_values(value):
    with pytest.raises(UsageError, match="x"):
        SearchSpace({"x": (1, value)})


def test_space_parameter_has_at_most_max_values():
    space = SearchSpace({"x": range(MAX_VALUES)})
    assert len(space) == MAX_VALUES
    assert space[MAX_VALUES - 1]["x"] == MAX_VALUES - 1


def test_space_refuses_malicious_restrictions():
    with pytest.raises(SpaceError, match="restriction"):
        SearchSpace({"x": (1,)}, ["__import__('os')"])
    with pytest.raises(SpaceError, match="restriction"):
        SearchSpace({"x": (1,)}, ["x == 1", "().__class__.__mro__[1].__subclasses__()"])


@pytest.mark.parametrize("rule", ["x > 5", "x < y and y < x", "1 > 2", lambda x: False, lambda: 0])
def test_space_without_legal_configuration_is_refused(rule):
    space = SearchSpace({"x": (1, 2), "y": (1, 2)}, [rule])
    with pytest.raises(SpaceError, match="no configuration satisfies the restrictions"):
        len(space)


def test_space_of_more_than_2_to_62_combinations_is_refused():
    space = SearchSpace({f"p{i}": range(1000) for i in range(7)})
    with pytest.raises(SpaceError, match=r"more than 2\^62 combinations"):
        len(space)


class TestTooLargeToEnumerate:
    SPACE = SearchSpace(
        {f"p{i}": range(10) for i in range(12)}, ["p0 + p1 + p2 <= 4", "p3 < p4", "p5 != p11"]
    )

    def test_len_counts_but_listing_is_refused(self):
        assert self.SPACE.is_too_large_to_enumerate
        assert len(self.SPACE) == 10**12
        with pytest.raises(SpaceError, match="more than 4,000,000 configurations"):
            list(self.SPACE)

    def test_sample_indices_are_legal_and_distinct(self):
        numbers = self.SPACE.sample_indices(500, np.random.default_rng(0))
        assert len(set(numbers.tolist())) == 500
        for number in numbers[:50].tolist():
            config = self.SPACE[number]
            assert sum(config[f"p{i}"] for i in range(3)) <= 4
            assert config["p3"] < config["p4"]
            assert self.SPACE.index(config) == number
        assert self.SPACE.index_or_none({**self.SPACE[int(numbers[0])], "p3": 9}) is None

    def test_sample_indices_are_drawn_evenly(self):
        sums = self.SPACE.columns(self.SPACE.sample_indices(4000, np.random.default_rng(0)))
        p0 = np.bincount(sums["p0"], minlength=10)
        # of 35 ways to be at most 4 in three numbers, 15 have the first 0, 10 have it 1, …
        assert p0[:5] / 4000 == pytest.approx(np.array([15, 10, 6, 3, 1]) / 35, abs=0.04)

    def test_neighbors_are_legal_and_differ_in_one_parameter(self):
        (config,) = self.SPACE.sample(1, np.random.default_rng(3))
        near = self.SPACE.neighbors(config)
        assert all(sum(c[n] != config[n] for n in c) == 1 for c in near)
        expected = [{**config, n: v} for n in config for v in range(10) if v != config[n]]
        legal = [c for c in expected if all(eval(str(r), {}, c) for r in self.SPACE.restrictions)]
        assert set(near) == set(map(Configuration, legal))

    def test_sample_indices_without_legal_configuration_is_refused(self):
        space = SearchSpace(self.SPACE.parameters, [" + ".join(self.SPACE.parameters) + " > 108"])
        with pytest.raises(SpaceError, match="no configuration that satisfies"):
            space.sample_indices(10, np.random.default_rng(0))


def test_from_configs_numbers_by_row():
    rng = np.random.default_rng(0)
    table = rng.integers(0, 50, (300, 20))  # 50^20 combinations
    configs = [{f"p{i}": v for i, v in enumerate(row)} for row in table.tolist()]
    space = SearchSpace.from_configs(configs)
    assert len(space) == 300
    assert [space.index(c) for c in space] == list(range(300))
    assert space.index_or_none({**configs[0], "p3": 50}) is None
    assert space.index_or_none({**space[0], "p19": space[1]["p19"]}) is None


SMALL = SearchSpace({"x": (1, 2, 4), "mode": ("a", "b")}, ["x < 4 or mode == 'a'"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"x": 3, "mode": "a"}, r"x=3,mode=a is not in the space: x=3 is not one of \(1, 2, 4\)"),
        ({"x": 4, "mode": "b"}, "it breaks x < 4 or mode == 'a'"),
        ({"x": 4}, "its parameters are x, mode"),
        ({"x": 4, "mode": "a", "z": 1}, "its parameters are x, mode"),
    ],
)
def test_index_of_other_configuration_gives_reason(config, message):
    with pytest.raises(SpaceError, match=message):
        SMALL.index(config)
    assert config not in SMALL


def test_space_does_not_contain_other_objects():
    for thing in (None, 3, "x=1", [("x", 1)], {"x": [1], "mode": "a"}):
        assert thing not in SMALL


def test_from_configs_has_distinct_configurations():
    recorded = [
        {"x": 4, "mode": "b", "flag": True},
        {"x": 1, "mode": "a", "flag": False},
        {"x": 4, "mode": "a", "flag": True},
        {"flag": True, "mode": "b", "x": 4},
    ]
    space = SearchSpace.from_configs(recorded)
    assert len(space) == 3
    assert set(space) == set(map(Configuration, recorded))
    assert [space.index(c) for c in space] == [0, 1, 2]
    assert space.columns()["x"].tolist() == [1, 4, 4]
    with pytest.raises(SpaceError, match="not one of those listed"):
        space.index({"x": 1, "mode": "b", "flag": True})


@given(st.lists(st.tuples(st.sampled_from([1, 2, "auto", "no", 0.5]), st.booleans()), min_size=1))
def test_from_configs_of_any_configurations_is_indexed(pairs):
    configs = [Configuration(split=s, flag=f) for s, f in pairs]
    space = SearchSpace.from_configs(configs)
    assert set(space) == set(configs)
    assert len(space) == len(set(configs))
    assert all(space[space.index(c)] == c for c in configs)


def test_from_configs_refuses_none_and_unequal_parameters():
    with pytest.raises(SpaceError, match="no configurations were given for the space"):
        SearchSpace.from_configs([])
    with pytest.raises(SpaceError, match="do not have the same parameters"):
        SearchSpace.from_configs([{"x": 1}, {"y": 1}])


def test_space_pickled_is_equal():
    copy = pickle.loads(pickle.dumps(SMALL))
    assert list(copy) == list(SMALL)


def test_space_repr_is_its_constructor():
    assert repr(SMALL) == (
        "SearchSpace({'x': (1, 2, 4), 'mode': ('a', 'b')}, [\"x < 4 or mode == 'a'\"])"
    )


class TestListedSpace:
    LISTED = (
        Configuration(tile=64, warps=4),
        Configuration(tile=16),
        Configuration(tile=64, warps=8),
        Configuration(tile=16),
    )

    def test_keeps_order_and_drops_repetitions(self):
        space = ListedSpace(self.LISTED)
        assert list(space) == list(self.LISTED[:3])
        assert [space.index_or_none(c) for c in self.LISTED] == [0, 1, 2, 1]

    def test_configuration_may_lack_parameters(self):
        space = ListedSpace(self.LISTED)
        assert space.parameters == {"tile": (64, 16), "warps": (4, ABSENT, 8)}
        assert space.codes.tolist() == [[0, 0], [1, 1], [0, 2]]

    def test_does_not_contain_unlisted(self):
        space = ListedSpace(self.LISTED)
        assert {"tile": 16.0} in space
        assert Configuration(tile=16, warps=4) not in space
        with pytest.raises(SpaceError, match="its parameters are"):
            space.index(Configuration(block=16))

    def test_neighbors_differ_in_one_parameter(self):
        assert ListedSpace(self.LISTED).neighbors(self.LISTED[0]) == [self.LISTED[2]]

    def test_refuses_empty_list(self):
        with pytest.raises(SpaceError, match="no configuration"):
            ListedSpace([])
