"""What a device name means: words that must match, and words that may be left out."""

import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
BRANDS = {
    "nvidia", "amd", "intel", "geforce", "tesla", "quadro", "radeon", "instinct", "firepro",
    "blackwell",
}  # fmt: skip
"""Words that a name may leave out: the model tells them."""
_SAME_WORD = {"laptop": "mobile", "notebook": "mobile", "ati": "amd"}
_FILLERS = {
    "graphics", "gpu", "generation", "with", "design", "edition", "workstation", "oam", "compute",
    "engine", "tensor", "core", "hbm2", "hbm2e", "hbm3", "hbm3e",
}  # fmt: skip
_FORM = re.compile(r"pcie|sxm|\d+gb")
_REWRITES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\((r|tm)\)|[®™]", ""),
        (r"[^a-z0-9+]+", " "),
        (r"\b(rtx|gtx|gts|gt|rx|arc)(?=\d)", r"\1 "),  # rtx4090
        (r"(?<=\d)(ti|super|xtx|xt|gre)\b", r" \1"),  # 1080ti
        (r"\b(\d+) ?g(i?b)?\b", r"\1gb"),
        (r"\bsxm[24567]\b", "sxm"),  # not the V100's SXM3, whose rates are others
    )
)


def words(name: str) -> frozenset[str]:
    """Return the words of a device name that tell devices apart, however it is written."""
    text = name.lower()
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    return frozenset(_SAME_WORD.get(word, word) for word in text.split()) - _FILLERS


def fitting(name: str, known: Iterable[tuple[frozenset[str], T]]) -> tuple[list[T], bool]:
    """Return the devices that a name may mean, and whether it names them in full.

    A device fits if it has every word of the name, and the name has every word of the device except
    brands: ``RTX 4070`` never means an RTX 4070 Ti. If none fits so, memory size and form (PCIe,
    SXM) may be left out too; if still none, the GPU exists for laptops only.
    """
    wanted = words(name)
    found: dict[int, list[T]] = {}
    for has, device in known if not wanted <= BRANDS else ():
        if wanted <= has:
            further = has - wanted - BRANDS
            forms = {word for word in further if _FORM.fullmatch(word)}
            if further - forms <= {"mobile"}:
                found.setdefault(2 if further - forms else bool(forms), []).append(device)
    best = min(found, default=0)
    return found.get(best, []), best == 0
