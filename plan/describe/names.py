"""Names of checkpoints: publisher, architecture, sizes and number format.

One grammar reads all names: words joined by ``-``, ``_``, a space or, after ``quantized``, a dot.
Words of a format (``FP8-dynamic``, ``quantized.w4a16``, ``AWQ-4bit``, ``GPTQ-Int8-128g``,
``NVFP4A16``) may stand anywhere. Words of training (``Instruct``) and dates do not change the
architecture. The others do, above all sizes: ``405B`` is never ``70B``.

A format from a name is a guess: only the checkpoint's files know groups and excluded modules.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlparse

from foretune.errors import UsageError
from foretune.plan.describe import shipped_json
from foretune.plan.describe.formats import base_format, grouped_name

_TABLE = shipped_json("checkpoint_formats.json")
FORMAT_OF_SUFFIX: dict[str, str] = _TABLE["suffixes"]
"""Word of a checkpoint's name -> format of its projections and experts."""
REFUSED_WORDS: dict[str, str] = _TABLE["refused_suffixes"]
"""Word -> format that cannot be planned."""
FORMAT_DETAILS = (
    "dynamic",
    "static",
    "block",
    "blockwise",
    "pertensor",
    "tensor",
    "channel",
    "ptpc",
    "quantized",
    "quant",
    "kv",
    "autoround",
    "unsloth",
    "mlx",
    "bnb",
    "gemm",
    "w",
    "a",
    "qad",
    "qat",
    "sym",
    "asym",
    "inc",
    "unquantized",
)
"""Words beside a format."""
TRAINING_WORDS = (
    "instruct",
    "chat",
    "base",
    "it",
    "hf",
    "meta",
    "thinking",
    "preview",
    "reasoning",
    "exp",
    "abliterated",
    "sft",
    "dpo",
    "original",
)
"""Words of training or publication, which do not change the architecture."""
UNVERSIONED = ("abliterated",)
"""Words of training whose versions have the same architecture."""
SIZE_WORDS = {
    "nano",
    "tiny",
    "mini",
    "small",
    "medium",
    "large",
    "lite",
    "air",
    "flash",
    "plus",
    "pro",
    "max",
    "super",
    "ultra",
    "scout",
    "maverick",
}
"""Words that stand for a size."""
FOUR_BIT_FORMATS = ("nvfp4", "nvfp4_wo", "mxfp4", "int4_wo")
"""Formats in which checkpoints with experts usually keep attention in 16 bits."""
HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "modelscope.cn", "www.modelscope.cn")
MIN_SIMILARITY = 0.85
"""Of a name that is suggested, between 0 and 1."""

_RELEASE = re.compile(r"\d{4}")
"""Date of a later release, like 2507, which has the architecture but may read longer prompts."""
_SIZE = re.compile(r"(\d+x)?\d+(\.\d+)?[bmt]|[ae]\d+(\.\d+)?b|\d+e")
"""Sizes: 405B, 8x7B, A22B, 128E."""
_WEIGHTS_ACTIVATIONS = re.compile(r"w(?P<weights>\d)a(?P<activations>fp8|\d+)")
_BITS = re.compile(r"(?:int)?(?P<bits>[2-8])-?bit|int(?P<int>[2-8])")
_GGUF = re.compile(r"(?:^|[-_.:])i?q\d_(?:k|\d|x|m|s|nl)")
"""Formats of llama.cpp: Q4_K_M, IQ3_XXS, Q8_0."""
_GGUF_WORDS = re.compile(r"[-_.:]i?q\d_\w+")
_VISION = re.compile(r"(?:^|-|intern|seek-)vl\d*(?![a-z])")
"""Names of models that read images are never suggested for others."""
_VERSION = re.compile(r"v\d+")
"""Behind a format, it counts the publications of a checkpoint."""
_GROUP = re.compile(r"g(?P<after>\d+)|(?P<before>\d+)g")
_FORMATS_OF_BITS = {
    ("4", "16"): "int4_wo",
    ("8", "16"): "int8_wo",
    ("3", "16"): "int3_wo",
    ("2", "16"): "int2_wo",
    ("8", "8"): "int8",
    ("4", "8"): "w4a8_int8",
    ("4", "fp8"): "w4afp8",
}


@dataclass(frozen=True)
class ModelName:
    """The parts of a name.

    Attributes:
        architecture: words that identify it, joined by ``-``.
        sizes: the words among them that are sizes.
        releases: dates.
        weights: number format; empty if the name has none.
        cache: format of the cache; empty if the name has none.
        refused: a format that cannot be planned; empty if there is none.
    """

    architecture: str
    sizes: frozenset[str]
    releases: frozenset[str]
    weights: str = ""
    cache: str = ""
    refused: str = ""


def parse_name(name: str) -> ModelName:
    """Return the parts of a checkpoint's name."""
    publisher, _, own_name = name.lower().rpartition("/")
    words = _words(own_name)
    format_words = {word for word in words if _is_of_format(word)}
    if not format_words - set(FORMAT_DETAILS) and "unquantized" not in words:
        format_words &= {"dynamic", "static", "quantized"}
    kept = [word for word in words if word not in format_words and word not in TRAINING_WORDS]
    architecture = [word for word in kept if not _RELEASE.fullmatch(word)]
    return ModelName(
        architecture="-".join(architecture),
        sizes=frozenset(w for w in architecture if w in SIZE_WORDS or _SIZE.fullmatch(w)),
        releases=frozenset(word for word in kept if _RELEASE.fullmatch(word)),
        weights=_format(words, publisher),
        cache="fp8" if "kv" in format_words else "",
        refused=_refused(own_name, words),
    )


def _refused(own_name: str, words: Sequence[str]) -> str:
    """Return a format in a name that cannot be planned; empty if there is none."""
    if "unquantized" in words:
        return ""
    for word in words:
        if word in REFUSED_WORDS:
            return REFUSED_WORDS[word]
    if _GGUF.search(own_name):
        return "GGUF"
    # Only the files know which modules have which of several formats.
    formats = set(_formats_of_weights(words)) - {"bf16"}
    return " and ".join(sorted(formats)) if len(formats) > 1 else ""


def _formats_of_weights(words: Sequence[str]) -> list[str]:
    """Return the formats that words stand for; the one behind ``kv`` is the cache's."""
    return [
        FORMAT_OF_SUFFIX[word]
        for i, word in enumerate(words)
        if word in FORMAT_OF_SUFFIX and (i == 0 or words[i - 1] != "kv")
    ]


def format_in_name(name: str) -> str:
    """Return the format in a name like ``nvidia/Qwen3-32B-NVFP4``; empty if none."""
    return parse_name(name).weights


def _words(own_name: str) -> list[str]:
    """Return the words of a name without its publisher."""
    text = _GGUF_WORDS.sub("", own_name)
    text = re.sub(r"[_\s]+", "-", text).replace("quantized.", "quantized-")
    # 4-bit and mxfp4-a-fp8 are one word each.
    text = re.sub(r"(\d)-bit\b", r"\1bit", text)
    text = re.sub(r"\bw-?mxfp4-?a-?mxfp4", "w4a4mxfp4", text)
    text = re.sub(r"\bw-?mxfp4-?a-?fp8", "w4a8mxfp4", text)
    words = [word for word in text.split("-") if word]
    is_of_format = [_is_of_format(word) or word in UNVERSIONED for word in words]
    return [
        word
        for i, word in enumerate(words)
        if not (i and is_of_format[i - 1] and _VERSION.fullmatch(word))
    ]


def _is_of_format(word: str) -> bool:
    patterns = (_WEIGHTS_ACTIVATIONS, _BITS, _GROUP)
    return (
        word in FORMAT_OF_SUFFIX
        or word in FORMAT_DETAILS
        or word in REFUSED_WORDS
        or any(pattern.fullmatch(word) for pattern in patterns)
    )


def _format(words: Sequence[str], publisher: str) -> str:
    """Return the weight format that words of a name stand for; empty if none."""
    bits = _first_match(_BITS, words)
    group = _first_match(_GROUP, words)
    pair = _first_match(_WEIGHTS_ACTIVATIONS, words)
    named = _formats_of_weights(words)
    n_bits = (bits["bits"] or bits["int"]) if bits else ""

    if pair:
        both = (pair["weights"], pair["activations"])
        base = _FORMATS_OF_BITS.get(both, "")
        if both == ("8", "8") and "fp8" in named:
            base = "fp8"
    elif "bnb" in words:
        base = {"4": "nf4", "8": "int8_wo"}.get(n_bits, "")
    elif publisher.startswith("mlx") or "mlx" in words:
        return grouped_name(f"int{n_bits}_wo", 64, "b") if n_bits in "234568" and n_bits else ""
    elif n_bits and all(name == "int4_wo" for name in named):  # AWQ, GPTQ, or bits alone
        base = f"int{n_bits}_wo"
    else:
        base = named[-1] if named else ""

    if base == "fp8" and _is_blockwise(words, publisher):
        return "fp8_block"
    if base == "mxfp4" and publisher == "amd":
        return "w4a4_mxfp4"
    if group and base.endswith("_wo") and base.startswith("int"):
        return grouped_name(base, int(group["after"] or group["before"]))
    return base


def _is_blockwise(words: Collection[str], publisher: str) -> bool:
    """Return whether fp8 has a scale per block; Qwen publishes such (``weight_block_size``)."""
    by_row = {"dynamic", "static", "pertensor", "tensor", "channel", "ptpc"} & set(words)
    return bool({"block", "blockwise"} & set(words)) or (publisher == "qwen" and not by_row)


def _first_match(pattern: re.Pattern[str], words: Iterable[str]) -> re.Match[str] | None:
    return next(filter(None, map(pattern.fullmatch, words)), None)


def repository_of(address: str) -> str:
    """Return ``publisher/name`` of an address on a model hub, or the text itself if it is none.

    Raises UsageError for addresses of other hosts, and for incomplete ones.
    """
    text = address.strip()
    if text.startswith("hf://"):
        text = f"https://huggingface.co/{text.removeprefix('hf://')}"
    if text.split("/")[0] in HUB_HOSTS:
        text = f"https://{text}"
    if "://" not in text:
        return address
    parts = urlparse(text)
    words = [word for word in parts.path.split("/") if word and word != "models"]
    if parts.hostname not in HUB_HOSTS or len(words) < 2:
        raise UsageError(
            f"{address} is no address of a model on Hugging Face: give PUBLISHER/NAME, or a folder "
            "with its config.json"
        )
    return "/".join(words[:2])


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return known names like ``name``, the most similar first.

    None has another size or release: numbers are no slips of the pen.
    """
    # Other hubs write the size after a colon: llama3.1:8b.
    wanted = parse_name(name.replace(":", "-"))
    by_similarity = []
    for candidate in known:
        parts = parse_name(candidate)
        if parts.sizes != wanted.sizes or _numbers(parts) != _numbers(wanted):
            continue
        if bool(_VISION.search(parts.architecture)) != bool(_VISION.search(wanted.architecture)):
            continue
        similarity = _similarity(wanted.architecture, parts.architecture)
        if similarity >= MIN_SIMILARITY:
            by_similarity.append((-similarity, candidate))
    return [candidate for _, candidate in sorted(by_similarity)]


def relatives(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that differ from ``name`` in sizes and releases only.

    Those of the same size come first, then the most similar ones.
    """
    wanted = parse_name(name)
    family = _family(wanted)
    found = []
    for candidate in known:
        parts = parse_name(candidate)
        if family and _family(parts) == family:
            similarity = _similarity(wanted.architecture, parts.architecture)
            found.append((parts.sizes != wanted.sizes, -similarity, candidate))
    return [candidate for _, _, candidate in sorted(found)]


def _similarity(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first, second).ratio()


def _numbers(parts: ModelName) -> list[str]:
    """Return the numbers of sizes and releases in a name."""
    return re.findall(r"\d+(?:\.\d+)?", parts.architecture)


def _family(parts: ModelName) -> str:
    """Return the words of a name without sizes and numbers."""
    words = parts.architecture.split("-")
    kept = [re.sub(r"v?[\d.]+", "", word) for word in words if word not in parts.sizes]
    return "-".join(filter(None, kept))


def keeps_attention_wide(name: str) -> bool:
    """Return whether checkpoints in a format usually keep attention beside experts in 16 bits."""
    return base_format(name) in FOUR_BIT_FORMATS
