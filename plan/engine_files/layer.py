"""A model layer whose tuned configurations engines find by file name.

vLLM (``fused_moe.get_config_file_name``, ``fp8_utils.get_w8a8_block_fp8_configs``) and SGLang
(``fused_moe_triton_config``, ``fp8_kernel``) use the same names::

    E=…,N=…,device_name=…[,dtype=…][,block_shape=[n,k]].json    experts
    N=…,K=…,device_name=…,dtype=…,block_shape=[n,k].json        linear layers, quantized in blocks

E is the number of experts. N is a rank's share of an expert's intermediate size, or the columns of
a rank's weights; K is the rows of weights. ``dtype`` is the quantization of weights and activations
(``fp8_w8a8``; omitted for 16 bits). A layer's problem has M, the number of tokens, and the values
in the name: E or K, N, ``dtype``, ``block_n`` and ``block_k``.
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
    """A layer, as encoded in a tuned file's name.

    Attributes:
        experts: E, experts per rank; 0 for a linear layer.
        size: N, an expert's intermediate size per rank, or columns of a rank's weights.
        device: the driver's full device name.
        dtype: quantization, e.g. ``fp8_w8a8``; empty for 16-bit weights.
        block_shape: (n, k) of the quantization blocks.
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
        """Return the layer of a file name.

        Raises UsageError for other names.
        """
        name = Path(path).name
        found = _NAME.fullmatch(name)
        if found is None or bool(found["E"]) == bool(found["K"]):
            raise UsageError(
                f"{name!r} is not named as tuned files of engines: E=…,N=… or N=…,K=…, then "
                ",device_name=…[,dtype=…][,block_shape=[n,k]].json"
            )
        block = (int(found["n"]), int(found["k"])) if found["n"] else None
        device = found["device"].replace("_", " ")
        experts, depth = int(found["E"] or 0), int(found["K"] or 0)
        return cls(experts, int(found["N"]), device, found["dtype"] or "", block, depth)

    @property
    def file_name(self) -> str:
        """The file name that vLLM looks for."""
        return self.file_name_for("vllm")

    @property
    def sizes(self) -> str:
        """The start of its name: ``E=…,N=…`` or ``N=…,K=…``."""
        if self.experts:
            return f"E={self.experts},N={self.size}"
        return f"N={self.size},K={self.depth}"

    def file_name_for(self, engine: Engine) -> str:
        """Return the file name that an engine looks for."""
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
        """Return the problem for a number of tokens."""
        values: dict[str, Value] = {TOKENS: tokens}
        values |= {"E": self.experts} if self.experts else {"K": self.depth}
        values["N"] = self.size
        if self.dtype:
            values["dtype"] = self.dtype
        if self.block_shape:
            values["block_n"], values["block_k"] = self.block_shape
        return Problem(values)
