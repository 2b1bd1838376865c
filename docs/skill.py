"""Writes docs/skill.md: how a program works with Foretune, with the commands' own help.

python docs/skill.py
"""

from pathlib import Path

import typer

from foretune.cli.app import app

FILE = Path(__file__).with_name("skill.md")
COMMANDS = ("tune", "judge", "predict", "inspect", "gate", "mcp")
WIDTH = 88
INTRODUCTION = """# Skill: make a kernel faster with Foretune, and prove it

Afterwards you can make a function or kernel faster in at most ten calls, and know that it is
correct.

1. **Write the reference.** Put the present code into `reference.py`, with `inputs(…, seed)` that
   returns the arguments of a call. Other seeds must give other values. List some sizes: `PROBLEMS
   = [{"rows": 100}, {"rows": 1000}]`.
2. **Find the knobs.** Block sizes, numbers of threads, algorithms: make each a parameter with a
   default. `foretune tune FILE.py:NAME --param block=8,16,32 --arg float64[4096,64] --json` finds
   the fastest values; `--arg` describes each input. A gain counts if `verdict` is `win`.
3. **Write a candidate** in `candidate.py`, with the same function's name. `foretune judge FOLDER
   --json --explain` says whether it is correct (`accepted`, else `refused` has the reason), how
   much faster (`speedup`, `speedup_interval`), and what limits it.
4. **Repeat 3** while `verdict` is not `win`. If the interval is around 1, the change is not worth
   having.
5. **Give a receipt**: `foretune judge FOLDER --receipt verdict.json`. Others verify it with
   `--verify-receipt`.

Do not cache results between calls, reuse buffers of earlier results, narrow the types of outputs,
or handle the given sizes only: the judge checks new values, several sizes, types, shared memory
and side effects, and refuses the candidate.

Exit codes: 0 success, 1 refused or failed, 2 a wrong request, 130 interrupted. With `--json`,
stdout has one JSON object and stderr has the messages. Through the Model Context Protocol, the
same commands are tools: `foretune mcp FOLDER`.
"""


def skill() -> str:
    """Return the page: the introduction, and each command's short help."""
    root = typer.main.get_command(app)
    parts = [INTRODUCTION]
    for name in COMMANDS:
        command = root.commands[name]  # type: ignore[attr-defined]
        context = command.make_context(
            f"foretune {name}", [], resilient_parsing=True, terminal_width=WIDTH
        )
        lines = [line.rstrip() for line in command.get_help(context).strip().splitlines()]
        parts.append(f"## foretune {name}\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(skill(), encoding="utf-8")
