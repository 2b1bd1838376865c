"""Starts `toy_server.py`, and finds what is left of it."""

import shlex
import sys
from pathlib import Path

import psutil

from foretune.plan.prove.server import ServerCommand, ServerProcess, free_port

PROGRAM = Path(__file__).with_name("toy_server.py")


def toy_words(port: int | str, *options: str) -> list[str]:
    """Return the command of a toy server."""
    return [sys.executable, "-S", str(PROGRAM), "--port", str(port), *options]


def toy_template(*options: str) -> str:
    """Return the command with placeholders, as for ``--command``."""
    program = shlex.join([sys.executable, "-S", str(PROGRAM)])
    return " ".join([program, "--port", "{port}", *options])


def toy_server(folder: Path, *options: str, grace_s: float = 2.0) -> ServerProcess:
    """Return a toy server that was not started yet."""
    port = free_port()
    command = ServerCommand(toy_words(port, *options), port=port)
    return ServerProcess(command, log=folder / "server.log", grace_s=grace_s)


def processes_of(port: int | str) -> list[psutil.Process]:
    """Return the living processes that name a port in their command."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            is_dead = process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if not is_dead and any(str(port) in word for word in words):
            found.append(process)
    return found
