"""``foretune replay``: what it prints, what its JSON holds, what it refuses."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_space import space_runs

from foretune.cli import main
from foretune.datasets import write_runs

FIELDS = {
    "space",
    "searcher",
    "evals_to_95",
    "evals_to_99",
    "hit_95",
    "fraction_at",
    "score",
    "overhead_ms",
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty directory with three devices' tables of one kernel."""
    monkeypatch.chdir(tmp_path)
    write_runs("a.parquet", space_runs())
    write_runs("b.parquet", space_runs(device="Second GPU", best=2))
    write_runs("c.parquet", space_runs(device="Third GPU", best=4))
    return tmp_path


def run_json(capsys, *arguments):
    """Replay with --json; return the one object on stdout."""
    assert main(["replay", *arguments, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def fails(capsys, code, *arguments):
    """Replay what must fail; return the one line."""
    assert main(["replay", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.strip().splitlines()[-1].removeprefix("foretune: ")


def test_replay_has_one_result_per_space_and_searcher(capsys):
    printed = run_json(
        capsys,
        "a.parquet",
        "b.parquet",
        "--searcher",
        "random",
        "--searcher",
        "exhaustive",
        "--budget",
        "20",
        "--repeats",
        "3",
    )
    whose = [(r["space"], r["searcher"]) for r in printed["results"]]
    assert whose == [(s, n) for s in "ab" for n in ("random", "exhaustive")]
    for result in printed["results"]:
        assert result.keys() >= FIELDS
        assert set(result["fraction_at"]) == {"5", "10", "20"}
        assert (result["budget"], result["repeats"]) == (20, 3)
        assert result["prior_devices"] == []
    assert [s["searcher"] for s in printed["summary"]] == ["random", "exhaustive"]
    exhaustive = printed["results"][1]
    assert exhaustive["evals_to_99"] is None
    assert exhaustive["hit_95"] == 0.0


def test_replay_same_seed_gives_same_result(capsys):
    arguments = ("a.parquet", "--searcher", "random", "--budget", "30", "--repeats", "4")
    one, two, other, apart = (
        run_json(capsys, *arguments, *more)["results"][0]
        for more in ((), (), ("--seed", "1"), ("--jobs", "2"))
    )
    for result in (one, two, other, apart):
        del result["overhead_ms"]
    assert one == two == apart
    assert one != other


def test_replay_prior_learns_only_from_other_devices(capsys):
    arguments = ("a.parquet", "--searcher", "exhaustive", "--repeats", "1", "--budget", "10")
    (alone,) = run_json(capsys, *arguments)["results"]
    files = [p for name in "abc" for p in ("--prior", f"{name}.parquet")]
    (guided,) = run_json(capsys, *arguments, *files)["results"]
    assert guided["prior_devices"] == ["Second GPU", "Third GPU"]
    assert guided["fraction_at"]["5"] > alone["fraction_at"]["5"]
    says = fails(capsys, 1, *arguments, "--prior", "a.parquet")
    assert "no prior for a: the runs have none of toy on a device other than Toy GPU" in says


def test_replay_prior_may_be_users_model(capsys, place, monkeypatch):
    (place / "own_prior.py").write_text("def guess(config):\n    return 100 - config['x']\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = ("a.parquet", "--searcher", "exhaustive", "--repeats", "1", "--budget", "3")
    (guided,) = run_json(capsys, *arguments, "--prior", "own_prior.py:guess")["results"]
    assert guided["prior_devices"] == ["own_prior.py:guess"]


def test_replay_prints_tables(capsys):
    arguments = ["replay", "a.parquet", "b.parquet", "--repeats", "2", "--budget", "12"]
    names = ["--searcher", "random", "--searcher", "tpe"]
    assert main([*arguments, *names, "--prior", "c.parquet"]) == 0
    out = capsys.readouterr().out
    assert "configurations within 5 %" in out
    assert "prior: Third GPU" in out
    assert "2 spaces: geometric means" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", ["curves.svg", "figures/curves.png"])
def test_replay_draws_curves(capsys, name):
    arguments = ["replay", "a.parquet", "b.parquet", "--searcher", "random", "--repeats", "2"]
    assert main([*arguments, "--budget", "9", "--plot", name]) == 0
    assert Path(name).stat().st_size > 5000
    assert f"curves: {name}" in capsys.readouterr().out


def test_replay_table_of_several_spaces(capsys):
    both = pd.concat([space_runs(), space_runs(n=5)], ignore_index=True)
    write_runs("both.parquet", both)
    arguments = ("both.parquet", "--searcher", "random", "--repeats", "1", "--budget", "5")
    printed = run_json(capsys, *arguments)
    assert [r["space"] for r in printed["results"]] == [
        "both (toy, Toy GPU, n=100)",
        "both (toy, Toy GPU, n=5)",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget", "0"], "--budget 0 leaves nothing to do"),
        (["--repeats", "0"], "--repeats 0 leaves nothing to do"),
        (["--jobs", "0"], "--jobs 0 is not a number of processes"),
        (["--searcher", "randon"], "unknown searcher 'randon': did you mean 'random'?"),
        (["--objective", "joy"], "unknown objective"),
        (["--plot", "curves.pdf"], "its name must end in .svg or .png"),
    ],
)
def test_replay_wrong_use_is_one_line(capsys, arguments, says):
    assert says in fails(capsys, 2, "a.parquet", *arguments)


def test_replay_unusable_table_is_one_line(capsys):
    failed = space_runs().assign(status="timeout", time_ms=np.nan)
    write_runs("failed.parquet", failed)
    for arguments, says in [
        (["none.parquet"], "none.parquet cannot be read: there is no such file"),
        (["failed.parquet"], "none of 60 configurations ran: there is nothing to find"),
        (["a.parquet", "--objective", "energy"], "ran with power_w"),
        (["a.parquet", "--prior", "none.parquet"], "does not exist"),
    ]:
        assert says in fails(capsys, 1, *arguments)
