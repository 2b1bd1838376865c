"""Number formats of keys and values in the cache: what they weigh, scales included.

Layouts as their makers have them: NVFP4 (an e4m3 scale for 16 numbers; TensorRT-LLM, and vLLM's
``nvfp4_kv_cache_full_dim``); SGLang's ``fp4_e2m1`` (an exponent of 8 bits for 16 numbers, where OCP
has it for 32); vLLM's ``int4_per_token_head`` (an fp32 word per token, head, and key or value);
KIVI (arXiv:2402.02750: a 16-bit scale and a zero point for 32 numbers, the last 128 tokens in 16
bits, 3.05 bits on average over 32k tokens); KVQuant's ``nuq3-1%`` (arXiv:2401.18079: 3 bits, and
for each of the hundredth that are outliers 32, for tables and pointers the rest of 3.33).
"""

from dataclasses import dataclass

from foretune.errors import UnknownName

BF16_BYTES = 2.0
"""Bytes of a number that is not quantized."""


@dataclass(frozen=True)
class CacheFormat:
    """How keys and values are stored.

    Attributes:
        name: as in the run table's ``config.kv_format``.
        bits: of one number.
        group: numbers that share a scale; 0 where scales weigh nothing (one per tensor).
        scale_bits: of one scale with its zero point.
        head_bits: of a scale per token, head, and key or value.
        residual: last tokens of a request that are kept in 16 bits.
    """

    name: str
    bits: float
    group: int = 0
    scale_bits: int = 0
    head_bits: int = 0
    residual: int = 0

    def bytes_per_value(self, width: float) -> float:
        """Return bytes per number, where heads are ``width`` numbers wide."""
        scales = self.scale_bits / self.group if self.group else 0.0
        return (self.bits + scales + self.head_bits / width) / 8

    def cache_bytes(self, tokens: float, numbers: float, width: float) -> float:
        """Return bytes of a layer's cache of one request.

        Args:
            tokens: in it.
            numbers: of each token.
            width: numbers of a head's key or value.
        """
        recent = min(tokens, self.residual)
        older = tokens - recent
        return numbers * (older * self.bytes_per_value(width) + recent * BF16_BYTES)


CACHE_FORMATS: dict[str, CacheFormat] = {
    f.name: f
    for f in (
        CacheFormat("bf16", 16),
        CacheFormat("fp8", 8),
        CacheFormat("nvfp4", 4, 16, 8),
        CacheFormat("fp4_e2m1", 4, 16, 8),
        CacheFormat("int4_head", 4, head_bits=32),
        CacheFormat("kivi2", 2, 32, 32, residual=128),
        CacheFormat("kvquant3", 3.33),
    )
}
"""Formats of the cache; fp8 with one scale per tensor."""
DEFAULT_CACHE_FORMATS = ("bf16", "fp8")
"""Those that plans look at by themselves; others are guesses, and looked at where asked for."""


def find_cache_format(name: str) -> CacheFormat:
    """Return the format of the cache called ``name``.

    Raises:
        UnknownName: there is none.
    """
    if name not in CACHE_FORMATS:
        raise UnknownName("format of the cache", name, CACHE_FORMATS)
    return CACHE_FORMATS[name]


def support_key(name: str) -> str:
    """Return what a table of hardware calls a cache's format: usual ones are those of weights."""
    return name if name in DEFAULT_CACHE_FORMATS else f"kv:{name}"
