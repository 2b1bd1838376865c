"""Why a server did not start or serve, in one line, from its log."""

import re
from dataclasses import dataclass
from pathlib import Path

from foretune.errors import MAX_CHARACTERS
from foretune.redaction import redact

OUT_OF_MEMORY = "out of memory"
"""Start of the reason of a server that ran out of memory; `MemoryLimit` learns from it."""
PORT_IN_USE = "the port is in use"
WRONG_FLAG = "the engine does not take a flag"
LOG_TAIL_BYTES = 200_000
"""End of a log that is searched."""
KILLED_STATUS = 128 + 9
"""Exit status after SIGKILL: the kernel's answer to a lack of memory."""

PATTERNS = {
    OUT_OF_MEMORY: re.compile(
        r"out of memory|outofmemory|cannot allocate memory|can't allocate memory|bad_alloc"
        r"|memoryerror|failed to allocate|no available memory for the cache"
        r"|larger than the (available|maximum) (kv|number of tokens)"
        r"|not enough memory|insufficient memory|less than desired .*memory",
        re.IGNORECASE,
    ),
    PORT_IN_USE: re.compile(r"address already in use|couldn't bind", re.IGNORECASE),
    WRONG_FLAG: re.compile(
        r"unrecognized arguments?|no such option|invalid argument|unknown argument"
        r"|error: argument",
        re.IGNORECASE,
    ),
}
"""Kind of failure -> what engines write then, as vLLM, SGLang, TensorRT-LLM and llama.cpp do."""
TELLING = re.compile(r"\b\w*(error|exception|fatal|failed)\b", re.IGNORECASE)
"""Lines that may tell a reason, if no pattern of `PATTERNS` is found."""
COLORS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Failure:
    """Why a server failed.

    Attributes:
        reason: one line, beginning with the kind if that is known.
    """

    reason: str

    @property
    def is_out_of_memory(self) -> bool:
        """Whether less memory may help."""
        return self.reason.startswith(OUT_OF_MEMORY)


def explain_exit(log: Path, status: int) -> Failure:
    """Return why a server ended with an exit status, from its log."""
    lines = log_lines(log)
    for kind, pattern in PATTERNS.items():
        told = next((line for line in reversed(lines) if pattern.search(line)), None)
        if told is not None:
            return Failure(_one_line(f"{kind}: {told}"))
    if status == KILLED_STATUS:
        return Failure(f"{OUT_OF_MEMORY}: the system killed the server")

    told = next((line for line in reversed(lines) if TELLING.search(line)), "")
    last = told or (lines[-1] if lines else "its log is empty")
    return Failure(_one_line(f"it ended with status {status}: {last}"))


def log_lines(log: Path) -> list[str]:
    """Return the lines at the end of a log that are not empty; none without a log."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - LOG_TAIL_BYTES, 0))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    plain = COLORS.sub("", text)
    return [line.strip() for line in plain.splitlines() if line.strip()]


def _one_line(text: str) -> str:
    """Return a text without secrets that fits in a row."""
    return redact(" ".join(text.split()))[:MAX_CHARACTERS]
