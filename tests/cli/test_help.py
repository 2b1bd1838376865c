"""Help: every command's fits a screen of 80 × 24; ``--help-all`` shows every option."""

import re

import pytest
import typer

from foretune.cli import main
from foretune.cli.app import app
from foretune.cli.command import FIRST

ROOT = typer.main.get_command(app)
PLANS = ROOT.commands["plan"].commands  # type: ignore[attr-defined]
COMMANDS = ["", *ROOT.commands, *(f"plan {name}" for name in PLANS)]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Make the screen 80 characters wide."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_one_screen(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines[1:] if line.endswith("...")], "cut short"


@pytest.mark.parametrize("command", COMMANDS)
def test_full_help_names_every_option(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*command.split(), "--help-all"]) == 0
    shown = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    found = ROOT
    for name in (command.split() or []) if command != "plan" else ["plan", "serve"]:
        found = found.commands[name]
    assert {option for p in found.params for option in p.opts if option[:2] == "--"} <= shown


def test_the_first_options_exist():
    for command, options in FIRST.items():
        found = ROOT
        for name in command.split():
            found = found.commands[name]
        assert set(options) <= {p.name for p in found.params}


def test_words_of_a_program_are_no_help(capsys):
    assert main(["tune", "--", "true", "--help-all"]) == 2
    assert "--param" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_types_of_one_value(command, capsys):
    assert main([*command.split(), "--help-all"]) == 0
    assert "list[" not in capsys.readouterr().out
