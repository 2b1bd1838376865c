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
"""Replaces a secret."""
MIN_CHARACTERS = 6
"""Shorter secrets are hidden only next to their name."""

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
"""Option of a shell before a command line: ``-c``, ``-lc``, ``/c``."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` with ``***`` in place of secrets.

    ``secrets`` are known ones, in addition to those in environment variables.
    """
    variables = [os.environ[name] for name in os.environ if _is_variable(name)]
    for secret in sorted({*secrets, *variables}, key=len, reverse=True):
        if len(secret) >= MIN_CHARACTERS:
            text = text.replace(secret, HIDDEN)
    if "://" in text:
        text = _ADDRESS.sub(_hide_in_address, text)
    # The search for names takes long: first look whether there may be one.
    if not _HINT.search(text):
        return text
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    return _NAMED.sub(_hide_named, text)


def _hide_in_address(match: re.Match[str]) -> str:
    """Hide the password of ``SCHEME://USER:PASSWORD@``, or the token of ``SCHEME://TOKEN@``."""
    scheme, user = match.groups()
    if user is None:
        return f"{scheme}{HIDDEN}@"
    return f"{scheme}{user}:{HIDDEN}@"


def _hide_named(match: re.Match[str]) -> str:
    """Hide a value behind a name that suggests a secret."""
    name, value = match.groups()
    if _NO_SECRET.fullmatch(value):
        return match[0]
    return f"{name}{HIDDEN}"


def redact_command(words: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the words of a command with ``***`` in place of secrets, and the secrets."""
    shown: list[str] = []
    secrets: set[str] = set()
    previous = ""
    for word in words:
        name, equals_sign, value = word.partition("=")
        is_command_line = len(words) == 1 or _SHELL_OPTION.fullmatch(previous)
        follows_secret_option = (
            previous.startswith("-")
            and _IS_NAME.fullmatch(previous.lstrip("-"))
            and not word.startswith("-")
        )
        if is_command_line:
            secrets |= _secrets_in_line(word)
            shown.append(word)
        elif follows_secret_option and not _NO_SECRET.fullmatch(word):
            secrets.add(word)
            shown.append(HIDDEN)
        elif not follows_secret_option and equals_sign and is_secret(name.lstrip("-"), value):
            secrets.add(value)
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(word)
        previous = word
    # A secret may occur in other words, too.
    return [redact(word, secrets) for word in shown], secrets


def is_secret(name: str, value: str) -> bool:
    """Whether the value of an option or variable of this name is secret."""
    return _IS_NAME.fullmatch(name) is not None and not _NO_SECRET.fullmatch(value)


def _secrets_in_line(line: str) -> set[str]:
    """Return the secrets in a command line, as in ``sh -c 'PASSWORD=x program'``."""
    parser = shlex.shlex(line, posix=True, punctuation_chars=True)
    parser.whitespace_split = True
    parser.commenters = ""
    try:
        words = list(parser)
    except ValueError:
        # A quotation does not end: this is no command line.
        return set()
    if len(words) < 2:
        return set()
    _, secrets = redact_command(words)
    return secrets


@functools.cache
def _is_variable(name: str) -> bool:
    """Whether an environment variable holds a secret; ``PWD`` is the working directory."""
    return _IS_NAME.fullmatch(name) is not None and name not in ("PWD", "OLDPWD")
