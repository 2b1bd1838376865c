"""``foretune import --shipped``: the tables that come with Foretune, and their cards."""

import pytest
from commands import fails, run_json

from foretune.cli import main
from foretune.datasets import card, load, read_runs, shipped, write_runs

NAME = shipped()[0]
SHIPPED = ("import", "--shipped")


def test_import_shipped_lists_all_tables(capsys):
    listed = run_json(capsys, "import", "--shipped")["datasets"]
    assert [c["name"] for c in listed] == shipped()
    assert main(["import", "--shipped"]) == 0
    out = capsys.readouterr().out
    assert NAME in out
    assert all(kernel in " ".join(out.split()) for kernel in card(NAME).kernels)


def test_import_shipped_shows_card(capsys):
    of_it = card(NAME)
    assert main(["import", NAME, "--shipped"]) == 0
    out = capsys.readouterr().out
    for printed in (
        of_it.system,
        of_it.protocol,
        of_it.licence,
        of_it.command,
        f"rows: {of_it.rows}",
    ):
        assert printed in out
    assert ("provisional" in out) == bool(of_it.provisional)
    assert run_json(capsys, "import", NAME, "--shipped")["rows"] == of_it.rows


def test_import_shipped_copies_table(capsys, tmp_path):
    out = tmp_path / "copy.parquet"
    run_json(capsys, "import", NAME, "--shipped", "--out", str(out))
    assert len(read_runs(out)) == len(load(NAME))


def test_import_shipped_keeps_other_runs(capsys, tmp_path):
    out = tmp_path / "mine.parquet"
    write_runs(out, load(NAME).head(3).assign(device="Mine"))
    command = ("import", NAME, "--shipped", "--out", str(out))
    assert main(command) == 2
    assert "holds 3 runs that are not among these" in capsys.readouterr().err
    assert set(read_runs(out)["device"]) == {"Mine"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("import", "--shipped", NAME[:-1]),
            f"unknown data set '{NAME[:-1]}': did you mean '{NAME}'?",
        ),
        ((*SHIPPED, "--out", "x.parquet"), "--out needs a name: 'foretune import --shipped' lists"),
        ((*SHIPPED, "--format", "generic"), "--shipped does not take format: leave --format out"),
        (("import", "x.csv"), "give --format, --out too"),
    ],
)
def test_import_shipped_wrong_use_is_one_line(capsys, arguments, line):
    assert fails(capsys, 2, *arguments).startswith(line)
