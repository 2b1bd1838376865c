"""``foretune mcp``: Foretune's commands as tools for programs that write kernels."""

from pathlib import Path

import typer

from foretune.support.lazy import require


def mcp(
    folder: Path = typer.Argument(Path(), help="Only files in this folder are run."),
) -> None:
    """Serve tune, judge, predict, inspect and gate over the Model Context Protocol.

    A client starts this command and speaks with it on stdin and stdout.

    Example: foretune mcp my_kernels/
    """
    require("mcp", "mcp", "foretune mcp")
    from foretune.cli.tool_server import make_server

    make_server(folder).run("stdio")
