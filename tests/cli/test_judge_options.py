"""Options of ``foretune judge`` that do not go together are refused in one line."""

import pytest

from foretune.cli import main

TWO = ["judge", "new.py:f", "old.py:f", "--problem", "n=64"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*TWO, "--sign", "key"], "--sign needs a receipt"),
        ([*TWO, "--signers", "allowed"], "--signers is for --verify-receipt"),
        ([*TWO, "--tune-seconds", "-1"], "--tune-seconds"),
        ([*TWO, "--receipt", "r.json", "--beside", "blas=a.py:f"], "no other rivals"),
        ([*TWO, "--verify-receipt", "r.json"], "leave --problem out"),
        ([*TWO, "--backward"], "are for folders"),
        (["judge", "new.py:f", "--problem", "n=64"], "needs a reference"),
        (["judge", "new.py:f", "old.py:f"], "no problem is given"),
        (["judge", "folder", "old.py:f"], "which has its own reference"),
        (["judge", "no_such_folder"], "there is no folder"),
    ],
)
def test_judge_refuses_options_that_do_not_go_together(capsys, arguments, says):
    assert main(arguments) == 2
    message = capsys.readouterr().err.strip()
    assert says in message
    assert "\n" not in message
