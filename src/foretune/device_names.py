"""Names of devices: which words tell devices apart, however a driver or a user writes them."""

import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

BRANDS = {
    "nvidia",
    "amd",
    "intel",
    "geforce",
    "tesla",
    "quadro",
    "radeon",
    "instinct",
    "firepro",
    "blackwell",
}
"""Words that a name may leave out, because the model implies them."""
_SAME_WORD = {"laptop": "mobile", "notebook": "mobile", "ati": "amd"}
"""Word -> another word that means the same."""
_FILLERS = {
    "graphics",
    "gpu",
    "generation",
    "with",
    "design",
    "edition",
    "workstation",
    "oam",
    "compute",
    "engine",
    "tensor",
    "core",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
}
"""Words that do not tell devices apart."""
_FORM = re.compile(r"pcie|sxm|\d+gb")
"""Words of the form and the memory size."""
_REWRITES = (
    (r"\((r|tm)\)|[®™]", ""),
    (r"[^a-z0-9+]+", " "),
    (r"\b(rtx|gtx|gts|gt|rx|arc)(?=\d)", r"\1 "),  # rtx4090
    (r"(?<=\d)(ti|super|xtx|xt|gre)\b", r" \1"),  # 1080ti
    (r"\b(\d+) ?g(i?b)?\b", r"\1gb"),
    (r"\bsxm[24567]\b", "sxm"),  # not the V100's SXM3, whose rates are others
)
"""Patterns of spellings, and how the spec tables write them."""


def words(name: str) -> frozenset[str]:
    """Return the words of a device name that tell devices apart, however it is written."""
    text = name.lower()
    for pattern, replacement in _REWRITES:
        text = re.sub(pattern, replacement, text)
    return frozenset(_SAME_WORD.get(word, word) for word in text.split()) - _FILLERS


def fitting(name: str, known: Iterable[tuple[frozenset[str], T]]) -> tuple[list[T], bool]:
    """Return the devices that a name may mean, and whether it names them in full.

    A device fits if it has every word of the name, and the name has every word of the device except
    brands: ``RTX 4070`` never means an RTX 4070 Ti. If none fits, memory size and form (PCIe, SXM)
    may be left out, too. If still none fits, ``mobile`` may be left out.
    """
    given_words = words(name)
    if given_words <= BRANDS:
        return [], True

    in_full: list[T] = []
    without_form: list[T] = []
    without_mobile: list[T] = []
    for device_words, device in known:
        if not given_words <= device_words:
            continue
        left_out = device_words - given_words - BRANDS
        forms = {word for word in left_out if _FORM.fullmatch(word)}
        others = left_out - forms
        if not left_out:
            in_full.append(device)
        elif not others:
            without_form.append(device)
        elif others == {"mobile"}:
            without_mobile.append(device)

    if in_full:
        return in_full, True
    fits = without_form or without_mobile
    return fits, not fits
