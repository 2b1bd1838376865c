"""Files of tuned configurations that serving engines read, for a GPU that nobody tuned.

vLLM and SGLang look up a file by the layer's sizes and the GPU, in their folder ``configs``::

    E=…,N=…,device_name=…[,dtype=…][,block_shape=[n, k]].json       a product of experts
    N=…,K=…,device_name=…,dtype=…,block_shape=[n, k].json           a product with scales of blocks

Of the same layer, tunings on two GPUs of one architecture agree as often as two tunings on the same
GPU; those of two architectures rarely do. So the file of the nearest GPU of the architecture is
copied, and without one there is none. The files have no times: nobody knows what a copy gains.
"""

import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from foretune.device import Device, find_device_or_none
from foretune.errors import ForetuneWarning, StoreError, UsageError
from foretune.support.files import atomic_write, read_json

VERSION_KEY = "triton_version"
REQUIRED = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
"""What a configuration of such a file has, whatever the engine."""
_DEVICE = re.compile(r"(?P<before>.+,)device_name=(?P<device>[^,]+?)(?P<after>(?:,.+)?\.json)")


@dataclass(frozen=True)
class TunedFileName:
    """The name of a tuned file: the GPU, and the rest of the name, which is the layer."""

    layer: str
    device: str

    @classmethod
    def parse(cls, path: str | os.PathLike[str]) -> "TunedFileName":
        """Parse a file's name; UsageError for other names."""
        name = Path(path).name
        parts = _DEVICE.fullmatch(name)
        if parts is None:
            raise UsageError(
                f"{name!r} is no name of a tuned file: give the name that the engine looks for, "
                "…,device_name=…[,dtype=…].json"
            )
        # Blanks in a block's shape differ between engines.
        layer = (parts["before"] + parts["after"]).replace(" ", "")
        return cls(layer=layer, device=parts["device"].replace("_", " "))


@dataclass(frozen=True)
class NearestFile:
    """A tuned file of another GPU of the same architecture."""

    path: Path
    device: str


def find_nearest_file(folder: Path, target: TunedFileName) -> NearestFile:
    """Return the same layer's file of the nearest GPU, from a folder and those below.

    It is of the same architecture, and has the nearest number of cores. Of one GPU's files, that of
    the newest Triton counts. Raises UsageError if there is none, or the GPU is unknown.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give the engine's folder of tuned files")
    device = find_device_or_none(target.device)
    if device is None or not device.architecture:
        raise UsageError(
            f"the architecture of {target.device} is not known, so no GPU is near it: correct the "
            "name, or tune with the engine's script"
        )
    other_files = [
        NearestFile(path, name.device)
        for path, name in _files_of_layer(folder, target.layer)
        if name.device != target.device
    ]
    devices = {file.device: _find_quietly(file.device) for file in other_files}
    near = [
        file
        for file in other_files
        if (known := devices[file.device]) and known.architecture == device.architecture
    ]
    if not near:
        found = f"only {other_files[0].device} and the like" if other_files else "no GPU"
        raise UsageError(
            f"{folder} has no file of this layer for a GPU of {device.architecture} ({found}), and "
            "those of other architectures are seldom right: tune with the engine's script"
        )

    def order(file: NearestFile) -> tuple[float, tuple[int, ...], str]:
        known = devices[file.device]
        assert known is not None
        newest_first = tuple(-number for number in _triton_version(file.path))
        return distance(known, device), newest_first, str(file.path)

    return min(near, key=order)


def distance(one: Device, other: Device) -> float:
    """Return the octaves between the numbers of cores of two GPUs; infinite if unknown."""
    cores = [device.specs.get("cores", math.nan) for device in (one, other)]
    if not min(cores) > 0:
        return math.inf
    return abs(math.log2(cores[0] / cores[1]))


def copy_file(source: Path, target: Path) -> int:
    """Copy a tuned file under another GPU's name; return its number of entries.

    Raises StoreError if the content is no tuned file's, UsageError if the target is there.
    """
    entries = _read_entries(source)
    if target.exists():
        raise UsageError(f"{target} is there already: delete it, or give another folder")
    with atomic_write(target, StoreError) as new:
        new.write_bytes(source.read_bytes())
    return len(entries)


def _find_quietly(name: str) -> Device | None:
    """Return a GPU, of any form that has this name: those of one name have one architecture."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForetuneWarning)
        return find_device_or_none(name)


def _files_of_layer(folder: Path, layer: str) -> Iterator[tuple[Path, TunedFileName]]:
    """Yield the files of a layer in a folder and those below; SGLang has one per Triton."""
    for path in sorted(folder.rglob("*device_name=*.json")):
        try:
            name = TunedFileName.parse(path)
        except UsageError:
            continue
        if name.layer == layer:
            yield path, name


def _triton_version(path: Path) -> tuple[int, ...]:
    """Return the version that a file, or its folder ``triton_3_4_0``, names; (0,) without one."""
    match = re.fullmatch(r"triton_([\d_]+)", path.parent.name)
    text = match[1].replace("_", ".") if match else str(_read(path).get(VERSION_KEY, ""))
    return tuple(int(number) for number in re.findall(r"\d+", text)) or (0,)


def _read_entries(path: Path) -> Mapping[str, object]:
    """Return the configurations of a file by their M, as text."""
    entries = {m: config for m, config in _read(path).items() if m != VERSION_KEY}
    for m, config in entries.items():
        is_config = isinstance(config, dict) and all(
            type(config.get(name)) is int for name in REQUIRED
        )
        if not m.isdigit() or not is_config:
            raise StoreError(f"{path}: its entry {m!r} is no configuration of a number of rows")
    if not entries:
        raise StoreError(f"{path} has no configuration: give another folder")
    return entries


def _read(path: Path) -> Mapping[str, object]:
    try:
        content = read_json(path)
    except (OSError, ValueError) as e:
        raise StoreError(f"cannot read {path}: {e}") from e
    if not isinstance(content, dict):
        raise StoreError(f"{path} does not map numbers of rows to configurations")
    return content
