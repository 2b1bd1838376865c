"""Exported functions: what they choose, what they are said to keep, and that they run alone."""

import ast
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.datasets import from_measurements
from foretune.errors import UnknownName, UsageError
from foretune.measurement import Measurement, Status
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.configuration_tree import Question, fit_tree, follow
from foretune.tune.efficiency import Score, efficiency_table, fill_missing
from foretune.tune.exported_function import export_function
from foretune.tune.function_source import name_arguments, write_source

TILES = (16, 64, 256)
NAN = math.nan


def law(problem, tile):
    """Small tiles for small problems; a switch and a text matter, too."""
    best = 16 if problem["M"] < 100 else 64 if problem["dtype"] == "fp16" else 256
    best = 16 if problem["causal"] else best
    return 1.0 + abs(math.log2(tile / best)) / 4


def measured(problem, config, time_ms, status=Status.OK, **more):
    time_ms = time_ms if status is Status.OK else NAN
    return Measurement("gemm", problem, Configuration(config), "Toy GPU", status, time_ms, **more)


def problems(count=36):
    return [
        Problem(M=10 * (i + 1), dtype=("fp16", "bf16")[i % 2], causal=i % 3 == 0)
        for i in range(count)
    ]


@pytest.fixture
def runs():
    """Every tile on every problem, and one that never runs."""
    rows = [measured(p, {"tile": t}, law(p, t)) for p in problems() for t in TILES]
    rows += [measured(p, {"tile": 1024}, NAN, Status.RUNTIME_ERROR) for p in problems()]
    return from_measurements(rows)


def run(source):
    """Execute generated source as any module; return its function."""
    names = {}
    exec(compile(source, "generated.py", "exec"), names)
    return names["choose"]


class TestShares:
    def test_efficiency_failure_is_zero_and_unmeasured_nan(self):
        rows = [
            measured(Problem(M=1), {"t": 1}, 2.0),
            measured(Problem(M=1), {"t": 2}, 1.0),
            measured(Problem(M=1), {"t": 3}, NAN, Status.TIMEOUT),
            measured(Problem(M=2), {"t": 1}, 3.0),
            measured(Problem(M=3), {"t": 1}, NAN, Status.COMPILE_ERROR),
        ]
        shares = efficiency_table(from_measurements(rows))
        assert (shares.kernel, shares.device, shares.excluded_problems) == ("gemm", "Toy GPU", 1)
        found = {
            (p["M"], c["t"]): share
            for p, row in zip(shares.problems, shares.efficiency, strict=True)
            for c, share in zip(shares.configs, row, strict=True)
        }
        assert {k: v for k, v in found.items() if v == v} == {
            (1, 1): 0.5,
            (1, 2): 1.0,
            (1, 3): 0.0,
            (2, 1): 1.0,
        }
        assert len(found) == 6

    def test_efficiency_newest_run_counts(self):
        old = "2026-01-01T00:00:00+00:00"
        new = "2026-01-02T00:00:00+00:00"
        rows = [
            measured(Problem(M=1), {"t": 1}, 1.0, recorded_at=new),
            measured(Problem(M=1), {"t": 1}, 9.0, recorded_at=old),
            measured(Problem(M=1), {"t": 2}, 2.0, recorded_at=new),
        ]
        assert sorted(efficiency_table(from_measurements(rows)).efficiency[0]) == [0.5, 1.0]

    def test_energy(self):
        rows = [
            measured(Problem(M=1), {"t": 1}, 1.0, power_w=300.0),
            measured(Problem(M=1), {"t": 2}, 2.0, power_w=75.0),
            measured(Problem(M=1), {"t": 3}, 0.1),
        ]
        shares = efficiency_table(from_measurements(rows), Objective.ENERGY)
        by_tile = dict(zip([c["t"] for c in shares.configs], shares.efficiency[0], strict=True))
        assert (by_tile[1], by_tile[2]) == (0.5, 1.0)
        assert math.isnan(by_tile[3]), "no meter is not a failure"
        with pytest.raises(UsageError, match="no run has a power_w: nothing can be chosen by"):
            efficiency_table(from_measurements(rows[2:]), Objective.ENERGY)

    def test_efficiency_needs_one_kernel_and_device(self, runs):
        with pytest.raises(UsageError, match=r"for one kernel, but these runs have gemm, other"):
            efficiency_table(runs.assign(kernel=["other"] + ["gemm"] * (len(runs) - 1)))
        with pytest.raises(UsageError, match=r"for one device, but these runs have A, B"):
            efficiency_table(runs.assign(device=["A"] + ["B"] * (len(runs) - 1)))
        with pytest.raises(UsageError, match="no run succeeded"):
            efficiency_table(runs[runs["status"] != "ok"])

    def test_export_order_of_rows_does_not_matter(self, runs):
        shuffled = runs.sample(frac=1, random_state=1).reset_index(drop=True)
        assert (
            export_function(efficiency_table(runs)).source
            == export_function(efficiency_table(shuffled)).source
        )


class TestChoosing:
    def test_fill_missing_estimates_cautiously(self):
        efficiency = np.array([[1.0, NAN], [1.0, 1.0], [0.7, NAN]])
        filled = fill_missing(efficiency)
        known = ~np.isnan(efficiency)
        assert filled[known].tolist() == efficiency[known].tolist()
        assert filled[0, 1] == filled[2, 1] == 0.25
        assert fit_tree([Problem(), Problem(a=1), Problem(a=2)], efficiency, 1) == 0

    def test_export_tree_no_better_held_out_is_single_configuration(self):
        rows = [
            measured(Problem(M=i), {"t": t}, 1.0 if t == i else 2.0)
            for i in range(10)
            for t in range(10)
        ]
        exported = export_function(efficiency_table(from_measurements(rows)), 10)
        assert exported.leaves == 1
        assert exported.training_score == exported.training_score_single
        assert exported.held_out.kept == exported.held_out_single.kept == 0.5

    def test_scores(self):
        share = np.array([[1.0, 0.5], [0.8, NAN], [0.0, 1.0]])
        assert Score.of_choices(share, [0, 0, 0]).kept == pytest.approx(0.6)
        found = Score.of_choices(share, [1, 1, 1])
        assert (found.kept, found.at_least, found.worst) == (0.75, 0.5, 0.5)
        assert (found.problems, found.unmeasured) == (3, 1)
        assert math.isnan(Score.of_choices(share[1:2], [1]).kept)


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.sampled_from([0, 1, 2**24, 2**24 + 1, 2**53, 2**53 + 1, 1e308, 5e-324, math.inf]),
)
TEXTS = st.text(max_size=6) | st.sampled_from(['"', "'''", '"""', "\\", "\n", "a\u2028b", "\ud800"])
CHOICES = st.one_of(TEXTS, st.booleans(), st.integers(0, 2))
NAMES = st.sampled_from(["M", "block size", "class", "dict", "float", "1st", "", "é", "_x", "ﬁ"])


@st.composite
def tables(draw):
    """Problems with odd names and values, some of them with gaps, and gains for each."""
    kinds = draw(
        st.dictionaries(
            NAMES, st.sampled_from([NUMBERS, CHOICES, st.booleans()]), min_size=1, max_size=4
        )
    )
    gap = draw(st.sampled_from([None, *kinds]))
    count = draw(st.integers(1, 12))
    found = {}
    for _ in range(count):
        values = {n: draw(kind) for n, kind in kinds.items()}
        if gap is not None and draw(st.booleans()):
            del values[gap]
        found[Problem(values)] = draw(st.lists(st.floats(0, 1), min_size=3, max_size=3))
    return list(found), np.array(list(found.values()))


class TestTrees:
    @given(tables(), st.integers(1, 6))
    def test_generated_code_does_what_the_tree_does(self, table, leaves):
        found, gains = table
        tree = fit_tree(found, gains, leaves)
        configs = [Configuration({"n": i, 'a"\n\\': math.inf, "t": "x'"}) for i in range(3)]
        source = write_source('of """kernel\\\n"', 'on \\ device \'"""\n', found, configs, tree)
        choose = run(source)
        arguments = name_arguments(found)
        for problem in found:
            chosen = choose(**{arguments[n]: v for n, v in problem.items() if n in arguments})
            assert chosen == dict(configs[follow(tree, problem)])
        assert not any(
            isinstance(n, (ast.Import, ast.ImportFrom)) for n in ast.walk(ast.parse(source))
        )

    @given(tables())
    def test_fit_tree_enough_leaves_give_every_problem_its_best(self, table):
        """However large, close or odd the values are: distinct problems are told apart."""
        found, gains = table
        tree = fit_tree(found, gains, 100)
        for problem, row in zip(found, gains, strict=True):
            assert row[follow(tree, problem)] == row.max()

    def test_sizes_part_half_way_in_ratio(self):
        found = [Problem(M=64), Problem(M=1024)]
        tree = fit_tree(found, np.array([[1.0, 0.0], [0.0, 1.0]]), 2)
        assert tree == (Question("M", 256, at_most=True), 0, 1)

    def test_switches_read_as_english(self):
        found = [Problem(causal=c) for c in (False, True)]
        tree = fit_tree(found, np.array([[1.0, 0.0], [0.0, 1.0]]), 2)
        assert tree == (Question("causal", True), 1, 0)
        source = write_source("t", "n", found, [Configuration(x=1), Configuration(x=2)], tree)
        assert "    if causal:\n        return dict(_CONFIGURATIONS[1])\n    return" in source

    def test_name_arguments_constant_parameter_is_left_out(self):
        found = [Problem({"M": m, "x.dtype": "fp16", "specialized": "x:16 y:16"}) for m in (1, 9)]
        configs = [Configuration(x=1), Configuration(x=2)]
        tree = fit_tree(found, np.array([[1.0, 0.0], [0.0, 1.0]]), 2)
        source = write_source("t", "n", found, configs, tree)
        assert "def choose(M: int) -> " in source
        assert "        x.dtype: fp16 in all of them\n" in source
        choose = run(source)
        assert [choose(1), choose(9)] == [{"x": 1}, {"x": 2}]
        assert run(write_source("t", "n", found[:1], configs, 1))() == {"x": 2}

    @pytest.mark.parametrize("spelled", [("fp16", "bf16"), ("float16", "bfloat16")])
    def test_element_types_are_given_as_the_caller_has_them(self, spelled):
        found = [Problem({"x.dtype": name}) for name in spelled]
        configs = [Configuration(x=1), Configuration(x=2)]
        tree = fit_tree(found, np.array([[1.0, 0.0], [0.0, 1.0]]), 2)
        source = write_source("t", "n", found, configs, tree)
        assert "def choose(x_dtype: object) -> " in source
        choose = run(source)
        for names, expected in (
            (("fp16", "float16", "torch.float16"), 1),
            (("bf16", "bfloat16", "torch.bfloat16"), 2),
        ):
            assert [choose(name)["x"] for name in names] == [expected] * 3
        torch = pytest.importorskip("torch")
        assert [choose(torch.float16)["x"], choose(torch.bfloat16)["x"]] == [1, 2]

    def test_write_source_lines_fit(self):
        names = [f"stride_of_axis_{i}" for i in range(12)]
        special = " ".join(f"{name}:16" for name in names)
        found = [Problem({**dict.fromkeys(names, 16 * i), "specialized": special}) for i in (1, 2)]
        source = write_source("t", "n", found, [Configuration(x=1)], 0)
        assert max(map(len, source.splitlines())) <= 100
        assert "\ndef choose(\n    stride_of_axis_0: int,\n" in source
        assert run(source)(*range(12)) == {"x": 1}

    def test_answers_that_do_not_matter_are_not_asked(self):
        found = [Problem(M=m) for m in range(8)]
        gains = np.column_stack([np.linspace(0.6, 1, 8), np.linspace(0.0, 0.5, 8)])
        assert fit_tree(found, gains, 8) == 0

    def test_question_absent_number_is_never_at_most(self):
        assert not Question("M", 3, at_most=True).answer(Problem(K=1))
        assert not Question("M", 3, at_most=True).answer(Problem(M="auto"))
        assert Question("M", None).answer(Problem(K=1))


class TestFunction:
    def test_export_finds_law(self, runs):
        shares = efficiency_table(runs)
        exported = export_function(shares)
        choose = run(exported.source)
        for problem in shares.problems:
            assert choose(**problem)["tile"] == min(TILES, key=lambda t: law(problem, t))
        assert exported.training_score.kept == exported.oracle_share == 1.0
        assert exported.training_score_single.kept < 0.9
        assert 0.95 < exported.held_out.kept <= 1.0
        assert exported.held_out.kept > exported.held_out_single.kept
        assert len(exported.configs) == 3
        assert exported.training_score.unmeasured == 0

    def test_efficiency_leaves_out_parameters_of_decorator(self):
        """Problems that differ in alignment or mode only count as one."""
        best = {(64, "x:16"): 1, (64, ""): 1, (4096, "x:16"): 2, (4096, ""): 2}
        rows = [
            measured(
                Problem({"n": n, "x.dtype": "float16", "specialized": how, "timed": "graph"}),
                {"t": t},
                1.0 if t == right else 2.0,
            )
            for (n, how), right in best.items()
            for t in (1, 2)
        ]
        rows[0] = measured(
            Problem(n=64, specialized="x:1", **{"x.dtype": "float16"}), {"t": 1}, 1.0
        )
        shares = efficiency_table(from_measurements(rows))
        expected = {Problem({"n": n, "x.dtype": "float16"}) for n in (64, 4096)}
        assert ({*shares.problems}, len(shares.problems)) == (expected, 2)
        choose = run(
            write_source(
                "t",
                "n",
                shares.problems,
                shares.configs,
                fit_tree(shares.problems, shares.efficiency, 2),
            )
        )
        assert [choose(n=n)["t"] for n in (64, 4096)] == [1, 2]
        mine = [measured(Problem(n=1, timed=t), {"t": 1}, 1.0) for t in ("a", "b")]
        assert len(efficiency_table(from_measurements(mine)).problems) == 2

    def test_export_docstring_says_where_it_comes_from(self, runs):
        exported = export_function(efficiency_table(runs))
        said = " ".join(ast.get_docstring(ast.parse(exported.source)).split())
        assert "Which configuration of gemm to run on Toy GPU." in said
        assert "144 measurements of 36 problems" in said
        assert "it keeps 100.0 % (the single best configuration: " in said
        assert "on held-out problems, " in said
        assert "M: 10 … 360" in exported.source
        assert "dtype: bf16, fp16" in exported.source or "dtype: fp16, bf16" in exported.source

    def test_exported_function_returns_new_dictionaries(self, runs):
        choose = run(export_function(efficiency_table(runs)).source)
        first = choose(M=10, dtype="fp16", causal=True)
        first["tile"] = "spoilt"
        assert choose(M=10, dtype="fp16", causal=True)["tile"] == 16

    def test_export_one_leaf_is_single_best(self, runs):
        exported = export_function(efficiency_table(runs), max_leaves=1)
        assert exported.leaves == len(exported.configs) == 1
        assert exported.training_score == exported.training_score_single
        assert exported.held_out == exported.held_out_single

    def test_export_has_at_most_max_leaves(self, runs):
        exported = export_function(efficiency_table(runs), 2)
        assert len(exported.configs) == exported.leaves == 2
        assert exported.source.count("{'tile': ") == 2

    def test_unmeasured_choices_are_counted_not_scored(self, runs):
        sparse = runs.sample(frac=0.6, random_state=0).reset_index(drop=True)
        exported = export_function(efficiency_table(sparse))
        assert exported.training_score.unmeasured > 0
        assert exported.training_score.at_least < exported.training_score.kept
        assert exported.oracle_share >= exported.training_score.kept
        assert (
            f"On {exported.training_score.unmeasured} of them its choice was not measured"
            in " ".join(exported.source.split())
        )

    def test_groups_are_held_out_together(self, runs):
        shares = efficiency_table(runs)
        by_type = export_function(shares, group="problem.dtype")
        assert by_type.held_out.kept < export_function(shares).held_out.kept
        with pytest.raises(UnknownName, match=r"unknown group 'problem\.K'"):
            export_function(shares, group="problem.K")

    def test_export_single_problem_has_no_held_out_score(self, runs):
        exported = export_function(efficiency_table(runs[runs["problem.M"] == 10]))
        assert exported.held_out is None
        assert exported.held_out_single is None
        assert "it was not evaluated on other problems" in " ".join(exported.source.split())

    def test_export_function_without_leaves_is_refused(self, runs):
        with pytest.raises(UsageError, match="--max-configs 0 leaves nothing"):
            export_function(efficiency_table(runs), 0)


def test_arguments_are_identifiers_of_their_own():
    found = [Problem({"a b": 1, "a_b": 2, "dict": 3, "if": 4, "": 5, "3d": 6}), Problem({"a_b": 1})]
    arguments = name_arguments(found)
    assert arguments["a_b"] == "a_b", "what is always there comes first"
    assert arguments["dict"] == "dict_"
    assert arguments["3d"] == "_3d"
    assert len(set(arguments.values())) == len(arguments)
    assert all(a.isidentifier() for a in arguments.values())
