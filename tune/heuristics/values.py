"""Writes a configuration as a C header, JSON or environment variables."""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from foretune.errors import UsageError


def _header(name: str, config: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    guard = f"{name.upper()}_TUNED_H"
    lines = [f"/* {key}: {text.replace('*/', '* /')} */" for key, text in notes.items()]
    for knob, value in config.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", knob):
            raise UsageError(f"knob {knob!r} is no name that C has: export JSON instead")
        option = isinstance(value, str) and value.startswith("-")
        text = f"{knob} {c_literal(value)}"
        lines.append(f"/* compile with {text} */" if option else f"#define {text}")
    return "\n".join([f"#ifndef {guard}", f"#define {guard}", *lines, "#endif", ""])


def _json(name: str, config: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    return json.dumps({"kernel": name, **notes, "config": dict(config)}, indent=1) + "\n"


def _env(name: str, config: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    lines = [f"# {key}: {' '.join(text.split())}" for key, text in notes.items()]
    lines += [
        f"{re.sub(r'[^A-Za-z0-9_]', '_', f'{name}_{knob}').upper()}={shlex.quote(str(value))}"
        for knob, value in config.items()
    ]
    return "\n".join([*lines, ""])


_WRITERS = {"h": _header, "json": _json, "env": _env}
FORMATS = tuple(_WRITERS)
"""Endings of the supported file formats."""


def format_values(kind: str, name: str, config: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """Return a configuration as the content of a file.

    Args:
        kind: one of `FORMATS`.
        name: the kernel's name.
        config: knob -> value.
        notes: comments for readers, by title.

    Raises:
        UsageError: the format cannot represent a value.
    """
    return _WRITERS[kind](name, config, notes)


def c_literal(value: Any) -> str:
    """Return a C literal; booleans are 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)
