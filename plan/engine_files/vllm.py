"""vLLM's tuned configurations of its fused mixture-of-experts kernel, in and out of a store.

vLLM looks up a file by the name of a `Layer`, and in it the number of tokens M nearest to the
call's::

    {"triton_version": "3.5.0", "1": {"BLOCK_SIZE_M": 16, …, "num_warps": 4, "num_stages": 5}, …}
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretune.errors import StoreError, UsageError
from foretune.files import atomic_write
from foretune.plan.engine_files.layer import TOKENS, Layer
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Choice, Store, Subject
from foretune.tune.store.reader import StoreReader
from foretune.tune.store.subject import OBJECTIVE_TAG, matches
from foretune.values import Value

REQUIRED = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps")
OPTIONAL = ("num_stages", "SPLIT_K", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""What most files, or some, hold beside: Triton has a default of stages; the last three are for
AMD GPUs."""
MAX_SIZE = 2**31
"""No size in a file reaches it."""
_ALIASES = {"BLOCK_M": "BLOCK_SIZE_M", "BLOCK_N": "BLOCK_SIZE_N", "BLOCK_K": "BLOCK_SIZE_K",
            "GROUP_M": "GROUP_SIZE_M"}  # fmt: skip
_VERSION = "triton_version"


@dataclass(frozen=True)
class ParameterNames:
    """How a kernel's problems call what vLLM's files speak of.

    Attributes:
        names: our name (``M``, ``E``, ``N``, ``dtype``, ``block_n``, ``block_k``) -> the kernel's.
        extra: what else every problem of the kernel holds, e.g. ``{"top_k": 8}``.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Value] = field(default_factory=dict)

    def to_kernel_problem(self, problem: Problem) -> Problem:
        """Return one of our problems as the kernel's."""
        return Problem({**{self.names.get(n, n): v for n, v in problem.items()}, **self.extra})

    def tokens(self, problem: Problem, layer: Layer) -> int | None:
        """Return the number of tokens of a kernel's problem; None if it is of another layer.

        The problem may say more than a file of vLLM's can: strides, alignment, candidates.
        """
        tokens = problem.get(self.names.get(TOKENS, TOKENS))
        if tokens is None or isinstance(tokens, str):
            return None
        return (
            int(tokens)
            if matches(problem, self.to_kernel_problem(layer.problem(int(tokens))))
            else None
        )


@dataclass(frozen=True)
class TunedLayer:
    """The content of one file: a layer and its configurations by number of tokens.

    Attributes:
        layer: what its name says.
        configs: number of tokens -> configuration.
        triton: the version of Triton it was tuned with; empty if it is not known.
    """

    layer: Layer
    configs: Mapping[int, Configuration]
    triton: str = ""


def read_vllm(path: str | os.PathLike[str]) -> TunedLayer:
    """Return one of vLLM's files.

    Raises:
        UsageError: it is not named as vLLM names them.
        StoreError: it cannot be read, or holds something else.
    """
    layer, path = Layer.from_file(path), Path(path)
    if not layer.experts:
        raise UsageError(f"{path.name} is of a linear layer, not of experts: its name has no E=…")
    return read_layer(layer, path)


def read_layer(layer: Layer, path: Path) -> TunedLayer:
    """Return what the file of a layer holds.

    Raises:
        StoreError: it cannot be read, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        triton = str(data.pop(_VERSION, ""))
        configs = {int(tokens): Configuration(config) for tokens, config in data.items()}
    except OSError as e:
        raise StoreError(f"cannot read {path}: {e.strerror or e}") from e
    except (ValueError, TypeError, AttributeError, RecursionError) as e:
        raise StoreError(f"{path} does not hold configurations by number of tokens: {e}") from e
    for tokens, config in configs.items():
        if missing := [name for name in REQUIRED if name not in config]:
            raise StoreError(f"{path}: M = {tokens} has no {', '.join(missing)}")
        sizes = {TOKENS: tokens, **{n: config[n] for n in (*REQUIRED, "num_stages") if n in config}}
        for name, value in sizes.items():
            if type(value) is not int or not 0 < value < MAX_SIZE:
                raise StoreError(f"{path}: {name} is {value!r}, which is no size")
    return TunedLayer(layer, configs, triton)


def write_vllm(folder: str | os.PathLike[str], tuned: TunedLayer) -> Path:
    """Write a file that vLLM finds (``VLLM_TUNED_CONFIG_FOLDER``), all or nothing; return its path.

    Raises:
        UsageError: a configuration lacks what vLLM needs, or holds what it does not know.
        StoreError: the file cannot be written.
    """
    return write_layer(Path(folder) / tuned.layer.file_name, tuned)


def write_layer(path: Path, tuned: TunedLayer) -> Path:
    """Write the file of a layer, all or nothing; return its path.

    Raises:
        UsageError, StoreError: see `write_vllm`.
    """
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
    naming: ParameterNames | None = None,
) -> tuple[Subject, int, int]:
    """Take the configurations of one of vLLM's files as choices; what was chosen before stands.

    They were measured when they were tuned, how long they took is not in the file, and how far
    they are from the best is not known.

    Args:
        store: where to.
        path: the file.
        kernel: name of the kernel they are for.
        subject: whose choices they become; by default those of any code of ``kernel`` tuned with
            the file's version of Triton on the file's device.
        naming: what the kernel's problems call things.

    Returns:
        The subject, how many choices are new, and how many problems had one.

    Raises:
        UsageError, StoreError: see `read_vllm`; or the subject is of another device.
    """
    tuned, naming = read_vllm(path), naming or ParameterNames()
    versions = f"triton {tuned.triton}" if tuned.triton else ""
    subject = subject or Subject(kernel, "vllm", tuned.layer.device, versions)
    if Layer(1, 1, subject.device).file_name != Layer(1, 1, tuned.layer.device).file_name:
        raise UsageError(f"{Path(path).name} is for {tuned.layer.device}, not {subject.device}")
    before = store.choices(subject)
    problems = {m: naming.to_kernel_problem(tuned.layer.problem(m)) for m in tuned.configs}
    for tokens, problem in problems.items():
        if problem not in before:
            choice = Choice(tuned.configs[tokens], 0, math.nan, "measured")
            store.choose(subject, problem, choice)
    kept = sum(problem in before for problem in problems.values())
    return subject, len(problems) - kept, kept


def export_vllm(
    tuned: StoreReader,
    folder: str | os.PathLike[str],
    subject: Subject,
    layer: Layer,
    naming: ParameterNames | None = None,
) -> tuple[Path, int]:
    """Write a subject's choices for one layer as a file of vLLM's.

    Of several choices for the same number of tokens the last one counts.

    Args:
        tuned: where the choices are.
        folder: where the file goes.
        subject: whose choices.
        layer: which experts.
        naming: what the kernel's problems call things.

    Returns:
        The file, and how many numbers of tokens it holds.

    Raises:
        UsageError: there is no choice for that layer, or one that vLLM cannot use.
        StoreError: the store cannot be read, or the file not be written.
    """
    naming = naming or ParameterNames()
    configs = {
        tokens: choice.config
        for problem, choice in tuned.choices(subject).items()
        if OBJECTIVE_TAG not in problem and (tokens := naming.tokens(problem, layer)) is not None
    }
    if not configs:
        raise UsageError(
            f"nothing was chosen for {naming.to_kernel_problem(layer.problem(1))} with any {TOKENS}: "
            "'foretune store KERNEL' lists the choices"
        )
    found = re.search(r"triton ([^\s,]+)", subject.versions)
    content = TunedLayer(layer, configs, found[1] if found else "")
    return write_vllm(folder, content), len(configs)


def _to_vllm(config: Configuration) -> dict[str, Any]:
    renamed = {_ALIASES.get(name, name): value for name, value in config.items()}
    if missing := [name for name in REQUIRED if name not in renamed]:
        raise UsageError(f"vLLM needs {', '.join(missing)}, and {config} has none")
    if unknown := renamed.keys() - {*REQUIRED, *OPTIONAL}:
        raise UsageError(f"vLLM knows no {', '.join(sorted(unknown))}, and {config} has it")
    return {name: renamed[name] for name in (*REQUIRED, *OPTIONAL) if name in renamed}
