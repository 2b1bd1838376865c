"""Removes secrets from texts that leave the process.

Errors, warnings, measurements and programs' commands pass `redact` before they are printed, stored,
exported or tracked. Secrets are the values of options, assignments and environment variables whose
names suggest one, and passwords and tokens in URLs.
"""

import functools
import os
import re
import shlex
from collections.abc import Iterable, Sequence

HIDDEN = "***"
MIN_CHARACTERS = 6  # shorter secrets are hidden only next to their name

_NAME = (
    r"[\w.-]*(?:passw(?:or)?d|passphrase|pwd|token|secret|credentials?|"
    r"(?:api|access|account|auth|encryption|private|secret|signing)[_-]?key)"
)
_IS_NAME = re.compile(_NAME, re.IGNORECASE)
_HINT = re.compile("passw|passph|pwd|token|secret|credential|key|authorization|bearer", re.I)
_ADDRESS = re.compile(r"""(?<![\w+.-])([\w+.-]+://)(?:([^\s/:@'"]*):[^\s'"]*|[^\s/@'"]+)@""")
_QUERY = re.compile(rf"([?&;]{_NAME}=)[^&;\s'\"]+?(?=:?(?:[&;\s'\"]|$))", re.IGNORECASE)
_NAMED = re.compile(
    rf"""((?<![\w?&;.-])(?:-{{0,2}}{_NAME}(?:=|["']\s*:\s*)|--?{_NAME}\s+(?!-)|"""
    r"""(?:proxy-)?authorization:\s*(?:\w+\s+)?|bearer\s+))"""
    r"""((?:"[^"]*"|'[^']*'|[^\s,;&])+?(?=[\])"']*:?(?:[\s,;&]|$)))""",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"\{\w+\}|\d{1,6}|")
"""Values that are not secrets: placeholders of knobs, counts (of tokens), empty text."""
_SHELL_OPTION = re.compile(r"[-/]\w*c")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` with ``***`` in place of secrets.

    ``secrets`` are known ones, in addition to those in environment variables.
    """
    variables = [os.environ[name] for name in os.environ if _is_variable(name)]
    for secret in sorted({*secrets, *variables}, key=len, reverse=True):
        if len(secret) >= MIN_CHARACTERS:
            text = text.replace(secret, HIDDEN)
    if "://" in text:
        text = _ADDRESS.sub(lambda m: f"{m[1]}{'' if m[2] is None else m[2] + ':'}{HIDDEN}@", text)
    if not _HINT.search(text):
        return text
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    return _NAMED.sub(lambda m: m[0] if _NO_SECRET.fullmatch(m[2]) else m[1] + HIDDEN, text)


def redact_command(words: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the words of a command with ``***`` in place of secrets, and the secrets."""
    shown, secrets, before = [], set[str](), ""
    for word in words:
        name, equals, value = word.partition("=")
        if len(words) == 1 or _SHELL_OPTION.fullmatch(before):
            name, value = word, ""
            secrets |= _secrets_in_line(word)
        elif before.startswith("-") and _IS_NAME.fullmatch(before.lstrip("-")) and word[:1] != "-":
            name, value = "", word
        elif not (equals and is_secret(name.lstrip("-"), value)):
            name, value = word, ""
        if _NO_SECRET.fullmatch(value):
            shown.append(word)
        else:
            shown.append(f"{name}={HIDDEN}" if name else HIDDEN)
            secrets.add(value)
        before = word
    return [redact(word, secrets) for word in shown], secrets


def is_secret(name: str, value: str) -> bool:
    """Whether the value of an option or variable of this name is secret."""
    return _IS_NAME.fullmatch(name) is not None and not _NO_SECRET.fullmatch(value)


def _secrets_in_line(line: str) -> set[str]:
    """Return the secrets in a command line, as in ``sh -c 'PASSWORD=x program'``."""
    parser = shlex.shlex(line, posix=True, punctuation_chars=True)
    parser.whitespace_split, parser.commenters = True, ""
    try:
        words = list(parser)
    except ValueError:  # a quotation that does not end
        return set()
    return redact_command(words)[1] if len(words) > 1 else set()


@functools.cache
def _is_variable(name: str) -> bool:
    """Whether an environment variable holds a secret; ``PWD`` is the working directory."""
    return _IS_NAME.fullmatch(name) is not None and name not in ("PWD", "OLDPWD")
