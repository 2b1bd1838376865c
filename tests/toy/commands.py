"""Commands in tests: run one for its JSON, or for the one line it fails with."""

import json

from foretune.cli import main


def run_json(capsys, *arguments, code=0):
    """Run a command with --json; return the one object on stdout."""
    assert main([*arguments, "--json"]) == code
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def fails(capsys, code, *arguments):
    """Run a command that must fail; return its one line."""
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    (line,) = (s for s in captured.err.splitlines() if s.startswith("foretune: "))
    assert captured.err.endswith(line + "\n")
    return line.removeprefix("foretune: ")
