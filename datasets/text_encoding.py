"""The text in a file's bytes: its encoding is told by its mark, else by its bytes."""

import codecs
import re

UTF_8 = "utf-8"

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
"""First bytes -> encoding; the longer marks come first, because they begin like shorter ones."""

_CONTROL = re.compile(r"[\x01-\x08\x0e-\x1f]")
"""Characters that no text table has; an escape would be among them."""


def decoded_table(data: bytes) -> tuple[str, str]:
    """Return the text of a table and its encoding (`UTF_8` also with a mark).

    A table that is not in UTF-8 is read as Windows-1252, which has the characters of Latin-1.
    Digits, points and commas are the same in both. Raises ValueError if it is no text.
    """
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            return _plain(data.decode(encoding)), UTF_8 if encoding == "utf-8-sig" else encoding
    try:
        return _plain(data.decode(UTF_8)), UTF_8
    except UnicodeDecodeError:
        text = data.decode("cp1252")
    if _CONTROL.search(text) is not None:
        raise ValueError("it is not text: save the table as CSV in UTF-8")
    return _plain(text), "windows-1252"


def decoded_document(data: bytes) -> tuple[str, int]:
    """Return the text of a JSON document, and the number of bytes that are not its encoding's.

    Profilers copy names of kernels as they are. A byte that is not UTF-8 becomes U+FFFD.
    """
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            return data.decode(encoding), 0
    try:
        return data.decode(UTF_8), 0
    except UnicodeDecodeError:
        text = data.decode(UTF_8, errors="replace")
    return text, text.count("\ufffd")


def _plain(text: str) -> str:
    if "\0" in text:
        raise ValueError("it has zero bytes: save it as UTF-8")
    return text
