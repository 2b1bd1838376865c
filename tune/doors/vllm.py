"""vLLM's tuned configurations of its fused mixture-of-experts kernel.

vLLM finds a file by the name of a `Layer` (``fused_moe.get_config_file_name``), and uses the entry
whose number of tokens M is nearest to the call's::

    E=…,N=…,device_name=…[,dtype=…][,block_shape=[n,k]].json
    {"triton_version": "3.5.0", "1": {"BLOCK_SIZE_M": 16, …, "num_warps": 4, "num_stages": 5}, …}
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from foretune.errors import StoreError, UsageError
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.files import atomic_write, read_json
from foretune.tune.store import Choice, Store, Subject
from foretune.tune.store.reader import StoreReader
from foretune.tune.store.subject import OBJECTIVE_TAG, matches
from foretune.values import Value

REQUIRED = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps")
OPTIONAL = ("num_stages", "SPLIT_K", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""Optional parameters. Triton has a default for ``num_stages``; the last three are for AMD GPUs."""
MAX_SIZE = 2**31  # sizes in a file must be smaller
_ALIASES = {
    "BLOCK_M": "BLOCK_SIZE_M",
    "BLOCK_N": "BLOCK_SIZE_N",
    "BLOCK_K": "BLOCK_SIZE_K",
    "GROUP_M": "GROUP_SIZE_M",
}
_VERSION = "triton_version"
TOKENS = "M"
_NAME = re.compile(
    r"E=(?P<E>\d+),N=(?P<N>\d+),device_name=(?P<device>[^,]+)(?:,dtype=(?P<dtype>[^,]+))?"
    r"(?:,block_shape=\[(?P<n>\d+),\s*(?P<k>\d+)\])?(?<!_down)\.json"
)


@dataclass(frozen=True)
class Layer:
    """A layer of experts, as encoded in a tuned file's name.

    Per rank, there are ``experts`` (E), whose intermediate size is ``size`` (N). ``device`` is the
    driver's full name, ``dtype`` a quantization such as ``fp8_w8a8``, empty for 16-bit weights, and
    ``block_shape`` the (n, k) of its blocks.
    """

    experts: int
    size: int
    device: str
    dtype: str = ""
    block_shape: tuple[int, int] | None = None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Parse a file name; UsageError for other names."""
        name = Path(path).name
        parts = _NAME.fullmatch(name)
        if parts is None:
            raise UsageError(
                f"{name!r} is not a name of vLLM's tuned expert files: "
                "E=…,N=…,device_name=…[,dtype=…][,block_shape=[n,k]].json"
            )
        block_shape = None
        if parts["n"]:
            block_shape = int(parts["n"]), int(parts["k"])
        return cls(
            experts=int(parts["E"]),
            size=int(parts["N"]),
            device=parts["device"].replace("_", " "),
            dtype=parts["dtype"] or "",
            block_shape=block_shape,
        )

    @property
    def file_name(self) -> str:
        """The file name that vLLM looks for; all H200s share one name."""
        device = self.device.replace(" ", "_")
        if "H200" in device.split("_"):
            device = "NVIDIA_H200"
        parts = [f"E={self.experts}", f"N={self.size}", f"device_name={device}"]
        if self.dtype:
            parts.append(f"dtype={self.dtype}")
        if self.block_shape:
            n, k = self.block_shape
            parts.append(f"block_shape=[{n},{k}]")
        return f"{','.join(parts)}.json"

    def problem(self, tokens: int) -> Problem:
        """Return the problem for a number of tokens: M and the values in the name."""
        values: dict[str, Value] = {TOKENS: tokens, "E": self.experts, "N": self.size}
        if self.dtype:
            values["dtype"] = self.dtype
        if self.block_shape:
            values["block_n"], values["block_k"] = self.block_shape
        return Problem(values)


@dataclass(frozen=True)
class ParameterNames:
    """Maps our names (``M``, ``E``, ``N``, ``dtype``, ``block_n``, ``block_k``) to a kernel's.

    ``extra`` are further parameters of every problem, e.g. ``{"top_k": 8}``.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Value] = field(default_factory=dict)

    def to_kernel_problem(self, problem: Problem) -> Problem:
        """Rename the parameters of one of our problems to the kernel's."""
        renamed = {self.names.get(name, name): value for name, value in problem.items()}
        return Problem({**renamed, **self.extra})

    def tokens(self, problem: Problem, layer: Layer) -> int | None:
        """Return the number of tokens of a kernel's problem; None for another layer."""
        tokens = problem.get(self.names.get(TOKENS, TOKENS))
        if tokens is None or isinstance(tokens, str):
            return None
        wanted = self.to_kernel_problem(layer.problem(int(tokens)))
        return int(tokens) if matches(problem, wanted) else None


@dataclass(frozen=True)
class TunedLayer:
    """A file's layer and its configurations by number of tokens.

    ``triton`` is the version it was tuned with, empty if unknown.
    """

    layer: Layer
    configs: Mapping[int, Configuration]
    triton: str = ""


def read_vllm(path: str | os.PathLike[str]) -> TunedLayer:
    """Return the content of one of vLLM's expert files.

    Raises UsageError for other file names, StoreError for other content.
    """
    layer = Layer.from_file(path)
    try:
        data = read_json(Path(path))
        triton = str(data.pop(_VERSION, ""))
        configs = {int(tokens): Configuration(config) for tokens, config in data.items()}
    except OSError as e:
        raise StoreError(f"cannot read {path}: {e.strerror or e}") from e
    except (ValueError, TypeError, AttributeError) as e:
        raise StoreError(f"{path} does not map numbers of tokens to configurations: {e}") from e
    for tokens, config in configs.items():
        _check_entry(Path(path), tokens, config)
    return TunedLayer(layer, configs, triton)


def _check_entry(path: Path, tokens: int, config: Configuration) -> None:
    """Raise StoreError if a parameter is missing, or a size is none."""
    missing = [name for name in REQUIRED if name not in config]
    if missing:
        raise StoreError(f"{path}: M = {tokens} has no {', '.join(missing)}")
    sizes: dict[str, Value] = {TOKENS: tokens}
    for name in (*REQUIRED, "num_stages"):
        if name in config:
            sizes[name] = config[name]
    for name, size in sizes.items():
        if type(size) is not int or not 0 < size < MAX_SIZE:
            raise StoreError(f"{path}: {name} is {size!r}, which is not a valid size")


def write_vllm(folder: str | os.PathLike[str], tuned: TunedLayer) -> Path:
    """Write a file that vLLM finds (``VLLM_TUNED_CONFIG_FOLDER``); return its path.

    Raises UsageError if a configuration lacks a parameter or has an unknown one.
    """
    path = Path(folder) / tuned.layer.file_name
    head = {_VERSION: tuned.triton} if tuned.triton else {}
    configs = {str(m): _to_vllm(tuned.configs[m]) for m in sorted(tuned.configs)}
    with atomic_write(path, StoreError) as new:
        new.write_text(json.dumps({**head, **configs}, indent=4) + "\n", encoding="utf-8")
    return path


def import_vllm(
    store: Store,
    path: str | os.PathLike[str],
    kernel: str = "fused_moe",
    subject: Subject | None = None,
    naming: ParameterNames = ParameterNames(),
) -> tuple[Subject, int, int]:
    """Store the configurations of one of vLLM's files as choices; existing choices stay.

    Their times and regrets are unknown. ``subject`` defaults to any code of ``kernel`` tuned with
    the file's Triton version and device. Returns the subject, and numbers of new and kept choices.
    """
    tuned = read_vllm(path)
    device = tuned.layer.device
    if subject is None:
        versions = f"triton {tuned.triton}" if tuned.triton else ""
        subject = Subject(kernel, "vllm", device, versions)
    if _name_of_device(subject.device) != _name_of_device(device):
        raise UsageError(f"{Path(path).name} is for {device}, not {subject.device}")

    n_new = 0
    chosen_before = store.choices(subject)
    for tokens, config in tuned.configs.items():
        problem = naming.to_kernel_problem(tuned.layer.problem(tokens))
        if problem not in chosen_before:
            store.choose(subject, problem, Choice(config, 0, math.nan, "measured"))
            n_new += 1
    return subject, n_new, len(tuned.configs) - n_new


def _name_of_device(device: str) -> str:
    """Return the device's name in the names of files, with a layer that is the same for all."""
    return Layer(experts=1, size=1, device=device).file_name


def export_vllm(
    tuned: StoreReader,
    folder: str | os.PathLike[str],
    subject: Subject,
    layer: Layer,
    naming: ParameterNames = ParameterNames(),
) -> tuple[Path, int]:
    """Write the last choices for one layer as one of vLLM's files.

    Returns the file and its number of entries.
    """
    configs: dict[int, Configuration] = {}
    for problem, choice in tuned.choices(subject).items():
        tokens = naming.tokens(problem, layer)
        if tokens is not None and OBJECTIVE_TAG not in problem:
            configs[tokens] = choice.config
    if not configs:
        raise UsageError(
            f"no choice for {naming.to_kernel_problem(layer.problem(1))} with any {TOKENS}: "
            "'foretune store KERNEL' lists the choices"
        )
    version = re.search(r"triton ([^\s,]+)", subject.versions)
    content = TunedLayer(layer, configs, triton=version[1] if version else "")
    return write_vllm(folder, content), len(configs)


def _to_vllm(config: Configuration) -> dict[str, Any]:
    """Return a configuration with vLLM's names, in its order."""
    renamed = {_ALIASES.get(name, name): value for name, value in config.items()}
    missing = [name for name in REQUIRED if name not in renamed]
    if missing:
        raise UsageError(f"vLLM needs {', '.join(missing)}, which {config} lacks")
    unknown = renamed.keys() - {*REQUIRED, *OPTIONAL}
    if unknown:
        raise UsageError(f"vLLM does not know {', '.join(sorted(unknown))}, which {config} has")
    return {name: renamed[name] for name in (*REQUIRED, *OPTIONAL) if name in renamed}
