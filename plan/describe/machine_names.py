"""Names of machines: numbers of GPUs, usual names of GPUs, and instances of clouds.

``4x RTX 3090``, ``H100:8`` and ``dual 4090`` have a number; ``4090`` and ``HGX B300`` stand for a
GPU; ``p5.48xlarge`` and ``a3-highgpu-8g`` are machines with a known number of a known GPU.
"""

import re
from dataclasses import dataclass
from functools import cache

from foretune.plan.describe import shipped_rows

_NUMBER_WORDS = {"single": 1, "dual": 2, "quad": 4, "octo": 8}
_COUNTED = (
    r"(?P<count>[1-9]\d{0,2})\s*[x×*]\s*(?P<gpu>.+)",
    r"(?P<count>[1-9]\d?)\s+(?P<gpu>[a-z].*\d.*)",
    rf"(?P<word>{'|'.join(_NUMBER_WORDS)})[\s-]+(?P<gpu>.+)",
    r"(?P<gpu>.+)\s[x×*]\s?(?P<count>[1-9]\d{0,2})",
    r"(?P<gpu>.*\d[a-z]{0,2})[x×*](?P<count>[1-9]\d?)",
    r"(?:gres/)?(?:gpu:)?(?P<gpu>[^:]*\d[^:]*):(?P<count>[1-9]\d?)",
)
"""Names with a number of GPUs; the last one is SLURM's."""
_PLURAL = re.compile(r"(?:(?<=\d)|(?<=\d[a-z]))s\b(?<!l40s)(?<!v100s)", re.IGNORECASE)
"""``8 H100s``; the L40S and the V100S are GPUs of their own."""

_USUAL_NAMES = (
    (r"dgx spark", "GB10"),
    (r"(?:dgx|hgx) ", ""),
    (r"(?:nvidia |geforce )*(?=[2-5]0[5-9]0\b)", "RTX "),
    (r"(?:nvidia )?(?=a[2-6][05]00\b)", "RTX "),
    (r"(?:nvidia )?(?=[2-6]000(?: sff)? ada\b)", "RTX "),
    (r"(?=w[5-7][5-9]00\b)", "Radeon PRO "),
    (r"(?:amd |radeon )*(?=[5-9]\d\d0 ?(?:xtx?|gre)\b)", "RX "),
    (r"(?:intel )?(?=max 1[135]\d0\b)", "Intel Data Center GPU "),
)
"""Beginnings of names that people use, and what they stand for: ``4090``, ``HGX B300``."""
_RACK = re.compile(r"(gb\d00)[ -]nvl\d+", re.IGNORECASE)
"""A rack, by its GPU."""
_OF_PROVIDER = re.compile(
    r"^(?:aws|amazon|ec2|gcp|gce|google cloud|google|azure|oci|oracle)[\s:/]+"
    r"|^ml\.|^standard_",
)
"""What may stand before the name of an instance; ``ml.`` is SageMaker's."""
_LIKE_INSTANCE = re.compile(
    r"gpu_\dx_\w+|[a-z][\w-]*\.(?:\d*xlarge|metal)|standard_\w+|[a-z]\d\w*-\w+-\d+g?|[bv]m\.gpu\S*"
)
_SLICE = re.compile(r"\bmig\b|\b\d+g\.\d+gb\b")


@dataclass(frozen=True)
class Instance:
    """A machine of a cloud: ``gpus`` of a ``system``, as `resolve_system` takes it."""

    provider: str
    gpus: int
    system: str


def split_count(name: str) -> tuple[int, str]:
    """Return number and GPU of a name like ``4x RTX 3090``; 0 if it has no number."""
    name = name.strip()
    for pattern in _COUNTED:
        match = re.fullmatch(pattern, name, re.IGNORECASE)
        if match is None:
            continue
        groups = match.groupdict()
        word = groups.get("word")
        count = _NUMBER_WORDS[word.lower()] if word else int(groups["count"])
        gpu = groups["gpu"].strip()
        return count, _PLURAL.sub("", gpu) if count > 1 else gpu
    return 0, name


def usual_name(name: str) -> str:
    """Return the full name of a GPU that people call ``4090``, ``A6000`` or ``HGX B300``."""
    name = _RACK.sub(r"\1", name.strip())
    for beginning, full in _USUAL_NAMES:
        match = re.match(beginning, name, re.IGNORECASE)
        if match is not None:
            return full + name[match.end() :]
    return name


def find_instance(name: str) -> Instance | None:
    """Return the cloud's machine of that name; None if none is known."""
    plain = _OF_PROVIDER.sub("", name.strip().lower())
    plain = _OF_PROVIDER.sub("", plain)
    for pattern, instance in _instances():
        if pattern.fullmatch(plain):
            return instance
    return None


def unplanned_machine(name: str) -> str:
    """Return what a machine is that cannot be planned by its name; empty if unknown."""
    plain = name.strip().lower()
    if accelerator := _other_accelerator(plain):
        return f"{accelerator}, and plans know GPUs of NVIDIA, AMD and Intel, and CPUs"
    if _SLICE.search(plain):
        return "a slice of a GPU: describe its memory and rates in a TOML file"
    if _LIKE_INSTANCE.fullmatch(plain):
        return "no known machine of a cloud: name its GPUs, like '8x h100_sxm'"
    return ""


def _other_accelerator(name: str) -> str:
    """Return what kind of accelerator, which is not planned, has such a name; empty if none."""
    words = re.split(r"[\s,/]+", name)
    for row in shipped_rows("accelerators.csv"):
        if any(re.fullmatch(row["word"], word) for word in words):
            return row["what"]
    return ""


@cache
def _instances() -> list[tuple[re.Pattern[str], Instance]]:
    return [
        (re.compile(row["name"]), Instance(row["provider"], int(row["gpus"]), row["system"]))
        for row in shipped_rows("machines.csv")
    ]
