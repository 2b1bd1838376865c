"""A layer of a model whose tuned configurations serving engines find by the name of a file.

vLLM (``fused_moe.get_config_file_name``, ``fp8_utils.get_w8a8_block_fp8_configs``) and SGLang
(``fused_moe_triton_config``, ``fp8_kernel``) name them alike::

    E=…,N=…,device_name=…[,dtype=…][,block_shape=[n,k]].json    experts
    N=…,K=…,device_name=…,dtype=…,block_shape=[n,k].json        linear layers, quantized in blocks

E is the number of experts, N a rank's share of an expert's intermediate size, or the columns of a
rank's weights; K is the rows of weights. ``dtype`` says how weights and activations are quantized
(``fp8_w8a8``; left out for 16-bit ones). A problem of a layer has M, the number of tokens, and what
the name has: E or K, N, ``dtype``, ``block_n`` and ``block_k``.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from foretune.errors import UsageError
from foretune.problem import Problem
from foretune.values import Value

Engine = Literal["vllm", "sglang"]
TOKENS = "M"
_NAME = re.compile(
    r"(?:E=(?P<E>\d+),)?N=(?P<N>\d+),(?:K=(?P<K>\d+),)?device_name=(?P<device>[^,]+)"
    r"(?:,dtype=(?P<dtype>[^,]+))?(?:,block_shape=\[(?P<n>\d+),\s*(?P<k>\d+)\])?(?<!_down)\.json"
)


@dataclass(frozen=True)
class Layer:
    """What the name of such a file says.

    Attributes:
        experts: E, experts on one rank; 0 for a linear layer.
        size: N, intermediate size of an expert on one rank, or columns of its weights.
        device: the device's full name, as its driver gives it.
        dtype: quantization, e.g. ``fp8_w8a8``; empty for 16-bit weights.
        block_shape: (n, k) of the quantization's blocks.
        depth: K of a linear layer; 0 for experts.
    """

    experts: int
    size: int
    device: str
    dtype: str = ""
    block_shape: tuple[int, int] | None = None
    depth: int = 0

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return what a file's name says.

        Raises:
            UsageError: it is not named as engines name them.
        """
        name = Path(path).name
        found = _NAME.fullmatch(name)
        if found is None or bool(found["E"]) == bool(found["K"]):
            raise UsageError(
                f"{name!r} is not named as engines name tuned files: E=…,N=… or N=…,K=…, then "
                ",device_name=…[,dtype=…][,block_shape=[n,k]].json"
            )
        block = (int(found["n"]), int(found["k"])) if found["n"] else None
        device = found["device"].replace("_", " ")
        experts, depth = int(found["E"] or 0), int(found["K"] or 0)
        return cls(experts, int(found["N"]), device, found["dtype"] or "", block, depth)

    @property
    def file_name(self) -> str:
        """The name vLLM looks for."""
        return self.file_name_for("vllm")

    @property
    def sizes(self) -> str:
        """What its name starts with: ``E=…,N=…`` or ``N=…,K=…``."""
        if self.experts:
            return f"E={self.experts},N={self.size}"
        return f"N={self.size},K={self.depth}"

    def file_name_for(self, engine: Engine) -> str:
        """Return the name an engine looks for."""
        device, between = self.device.replace(" ", "_"), ","
        if engine == "sglang":
            between = ", "
        elif self.experts and "H200" in device.split("_"):  # vLLM has one file for all H200s
            device = "NVIDIA_H200"
        dtype = f",dtype={self.dtype}" if self.dtype else ""
        shape = between.join(map(str, self.block_shape or ()))
        block = f",block_shape=[{shape}]" if shape else ""
        return f"{self.sizes},device_name={device}{dtype}{block}.json"

    def problem(self, tokens: int) -> Problem:
        """Return the problem of a number of tokens."""
        values: dict[str, Value] = {TOKENS: tokens}
        values |= {"E": self.experts} if self.experts else {"K": self.depth}
        values["N"] = self.size
        if self.dtype:
            values["dtype"] = self.dtype
        if self.block_shape:
            values["block_n"], values["block_k"] = self.block_shape
        return Problem(values)
