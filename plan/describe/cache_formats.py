"""Number formats of the KV cache and their sizes, including scales.

Layouts follow the implementations: NVFP4 (an e4m3 scale per 16 numbers; TensorRT-LLM, and vLLM's
``nvfp4_kv_cache_full_dim``); SGLang's ``fp4_e2m1`` (an 8-bit exponent per 16 numbers; OCP has 32);
vLLM's ``int4_per_token_head`` (an fp32 word per token, head, and key or value).
"""

from dataclasses import dataclass

from foretune.errors import UnknownName


@dataclass(frozen=True)
class CacheFormat:
    """How keys and values are stored.

    Attributes:
        name: as in the run table's ``config.kv_format``.
        bits: per number.
        group: numbers that share a scale; 0 for one scale per tensor.
        scale_bits: per scale.
        head_bits: per scale of a token, head, and key or value.
    """

    name: str
    bits: float
    group: int = 0
    scale_bits: int = 0
    head_bits: int = 0

    def bytes_per_value(self, width: float) -> float:
        """Return bytes per number for heads of ``width`` numbers."""
        scales = self.scale_bits / self.group if self.group else 0.0
        return (self.bits + scales + self.head_bits / width) / 8


CACHE_FORMATS: dict[str, CacheFormat] = {
    f.name: f
    for f in (
        CacheFormat("bf16", 16),
        CacheFormat("fp8", 8),
        CacheFormat("nvfp4", 4, 16, 8),
        CacheFormat("fp4_e2m1", 4, 16, 8),
        CacheFormat("int4_head", 4, head_bits=32),
    )
}
"""Cache formats; fp8 has one scale per tensor."""
DEFAULT_CACHE_FORMATS = ("bf16", "fp8")
"""Formats planned by default; others are extrapolated and planned on request."""


def find_cache_format(name: str) -> CacheFormat:
    """Return the cache format called ``name``.

    Raises UnknownName.
    """
    if name not in CACHE_FORMATS:
        raise UnknownName("format of the cache", name, CACHE_FORMATS)
    return CACHE_FORMATS[name]


def support_key(name: str) -> str:
    """Return a cache format's name in the hardware table; usual ones share that of weights."""
    return name if name in DEFAULT_CACHE_FORMATS else f"kv:{name}"
