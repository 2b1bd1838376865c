"""Passwords and tokens in addresses: removed from all that is shown or written."""

import re

HIDDEN = "***"
_USER = re.compile(r"(\w[\w+.-]*://)[^\s/@]+@")
_NAMED = re.compile(
    r"((?:^|[?&;\s])[\w-]*(?:password|passwd|pwd|token|secret|api_?key)=)[^&;:\s]+", re.IGNORECASE
)


def redact(text: str) -> str:
    """Return a text without who signs in, how, and with what token, in any address in it."""
    return _NAMED.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))
