"""What can be asked: operators, their sizes and formats, and how a line of text states them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from foretune.errors import UnknownName, UsageError
from foretune.plan.describe.formats import table_name
from foretune.problem import ProblemParameter, make_problem
from foretune.space import Configuration
from foretune.values import Value

DEFAULT_FORMAT = "bf16"
MAX_BYTES = 2**40
FORMAT_NAMES = ("dtype", "format")
"""Names of the number format among the sizes."""
CACHE_FORMAT_NAMES = ("kv_dtype", "kv_format")
"""Names of the cache's number format."""
PARALLEL_SIZES = ("tp", "ep")
"""Sizes that are columns of the configuration."""


def _size(name: str, default: int | None = None, minimum: int = 1) -> ProblemParameter:
    return ProblemParameter(name, default=default, minimum=minimum, maximum=MAX_BYTES)


@dataclass(frozen=True)
class OperatorSpec:
    """An operator that can be asked about.

    Attributes:
        kernel: its name in run tables.
        sizes: what describes one call.
        load: the size that grows with the batch.
        aliases: other name of a size -> its name.
        formats: whether it computes in a format that one can choose.
        cache: whether it reads a cache with a format of its own.
        between_devices: whether it is an exchange between devices.
    """

    kernel: str
    sizes: tuple[ProblemParameter, ...]
    load: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    formats: bool = True
    cache: bool = False
    between_devices: bool = False


_ATTENTION_ALIASES = {"batch_size": "batch", "num_heads": "heads", "num_kv_heads": "kv_heads"}
_PREFILL_ALIASES = {
    **_ATTENTION_ALIASES,
    **{"isl": "seq_len", "tokens": "seq_len", "prefix": "prefix_len"},
}
_DECODE_ALIASES = {
    **_ATTENTION_ALIASES,
    **{"context": "kv_len", "seq_len": "kv_len", "isl": "kv_len"},
}
_ROWS = (_size("rows"), _size("columns"))
_ROW_ALIASES = {"M": "rows", "tokens": "rows", "N": "columns", "hidden": "columns"}
_MESSAGE = (_size("message_bytes"), _size("devices", minimum=2))
_MESSAGE_ALIASES = {"bytes": "message_bytes", "message": "message_bytes", "gpus": "devices"}

OPERATORS: dict[str, OperatorSpec] = {
    "gemm": OperatorSpec(
        kernel="gemm",
        sizes=(_size("M"), _size("N"), _size("K")),
        load="M",
        aliases={"m": "M", "n": "N", "k": "K", "tokens": "M"},
    ),
    "attention_prefill": OperatorSpec(
        kernel="attention_prefill",
        sizes=(
            _size("batch", 1),
            _size("seq_len"),
            _size("prefix_len", 0, minimum=0),
            _size("heads"),
            _size("kv_heads", 0, minimum=0),
            _size("head_dim", 128),
            _size("window", 0, minimum=0),
        ),
        load="batch",
        aliases=_PREFILL_ALIASES,
        cache=True,
    ),
    "attention_decode": OperatorSpec(
        kernel="attention_decode",
        sizes=(
            _size("batch"),
            _size("kv_len"),
            _size("heads"),
            _size("kv_heads", 0, minimum=0),
            _size("head_dim", 128),
            _size("window", 0, minimum=0),
        ),
        load="batch",
        aliases=_DECODE_ALIASES,
        cache=True,
    ),
    "mla_prefill": OperatorSpec(
        kernel="mla_prefill",
        sizes=(
            _size("batch", 1),
            _size("seq_len"),
            _size("prefix_len", 0, minimum=0),
            _size("heads", 128),
        ),
        load="batch",
        aliases=_PREFILL_ALIASES,
        cache=True,
    ),
    "mla_decode": OperatorSpec(
        kernel="mla_decode",
        sizes=(_size("batch"), _size("kv_len"), _size("heads", 128)),
        load="batch",
        aliases=_DECODE_ALIASES,
        cache=True,
    ),
    "experts": OperatorSpec(
        kernel="moe",
        sizes=(
            _size("tokens"),
            _size("hidden"),
            _size("intermediate"),
            _size("experts"),
            _size("top_k"),
            _size("tp", 1),
            _size("ep", 1),
        ),
        load="tokens",
        aliases={"M": "tokens", "hidden_size": "hidden", "topk": "top_k", "num_experts": "experts"},
    ),
    "norm": OperatorSpec("norm", _ROWS, load="rows", aliases=_ROW_ALIASES),
    "softmax": OperatorSpec("softmax", _ROWS, load="rows", aliases=_ROW_ALIASES),
    "elementwise": OperatorSpec("elementwise", _ROWS, load="rows", aliases=_ROW_ALIASES),
    **{
        name: OperatorSpec(
            kernel=name,
            sizes=_MESSAGE,
            load="message_bytes",
            aliases=_MESSAGE_ALIASES,
            formats=False,
            between_devices=True,
        )
        for name in ("all_reduce", "all_to_all", "all_gather", "reduce_scatter")
    },
}
"""Operator -> what it is."""
OTHER_NAMES = {
    "matmul": "gemm",
    "linear": "gemm",
    "moe": "experts",
    "prefill": "attention_prefill",
    "decode": "attention_decode",
    "rmsnorm": "norm",
    "layernorm": "norm",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "allgather": "all_gather",
}
"""Another name of an operator -> its name."""
PHASED = {
    "attention": ("attention_prefill", "attention_decode"),
    "mla": ("mla_prefill", "mla_decode"),
}
"""Name without a phase -> its prefill and its decode; a ``kv_len`` asks for the decode."""


@dataclass(frozen=True)
class Question:
    """One operator with all its sizes.

    Attributes:
        operator: a key of `OPERATORS`.
        sizes: by name, all of them.
        format: of weights and activations.
        kv_format: of the cache; empty if there is none.
    """

    operator: str
    sizes: Mapping[str, float]
    format: str = DEFAULT_FORMAT
    kv_format: str = ""

    @property
    def spec(self) -> OperatorSpec:
        """What is known of the operator."""
        return OPERATORS[self.operator]

    @property
    def measured_format(self) -> str:
        """The format's name in measured tables; 16 bits are measured in bf16."""
        return DEFAULT_FORMAT if self.format == "fp16" else table_name(self.format)

    @property
    def problem(self) -> dict[str, Value]:
        """The ``problem.*`` columns of a run table."""
        sizes: dict[str, Value] = {
            name: float(size) for name, size in self.sizes.items() if name not in PARALLEL_SIZES
        }
        if self.operator == "experts":
            sizes["distribution"] = "power_law_1.2"
        if "kv_heads" in sizes and not sizes["kv_heads"]:
            sizes["kv_heads"] = sizes["heads"]
        return sizes

    @property
    def config(self) -> dict[str, Value]:
        """The ``config.*`` columns of a run table."""
        columns: dict[str, Value] = {
            name: float(self.sizes[name]) for name in PARALLEL_SIZES if name in self.sizes
        }
        if self.spec.formats:
            columns["format"] = self.format if self.format == "fp16" else self.measured_format
        if self.kv_format:
            columns["kv_format"] = table_name(self.kv_format)
        if self.operator == "experts":
            columns["experts"] = "gated"
        return columns

    def with_size(self, name: str, value: float) -> "Question":
        """Return the question with another size; raises UnknownName."""
        known = {**{one: one for one in self.sizes}, **self.spec.aliases}
        if name not in known:
            raise UnknownName(f"size of {self.operator}", name, self.sizes)
        return replace(self, sizes={**self.sizes, known[name]: value})


def operator_name(name: str, sizes: Mapping[str, Any] | None = None) -> str:
    """Return the operator that a user names; raises UnknownName.

    ``attention`` and ``mla`` are decoded if ``sizes`` have a ``kv_len``, else prefilled.
    """
    plain = name.lower().replace("-", "_")
    if plain in PHASED:
        prefill, decode = PHASED[plain]
        return decode if "kv_len" in (sizes or {}) else prefill
    plain = OTHER_NAMES.get(plain, plain)
    if plain not in OPERATORS:
        raise UnknownName("operator", name, [*OPERATORS, *PHASED, *OTHER_NAMES])
    return plain


def is_operator(name: str) -> bool:
    """Return whether ``name`` means an operator."""
    plain = name.lower().replace("-", "_")
    return plain in OPERATORS or plain in PHASED or plain in OTHER_NAMES


def read_question(name: str, given: Mapping[str, Any]) -> Question:
    """Return the question of an operator and its sizes and formats.

    Raises UnknownName or ProblemError for an operator, a size or a value that is not possible.
    """
    operator = operator_name(name, given)
    spec = OPERATORS[operator]
    sizes: dict[str, Any] = {}
    formats: dict[str, str] = {}
    for key, value in given.items():
        if key in FORMAT_NAMES and spec.formats:
            formats["format"] = str(value)
        elif key in CACHE_FORMAT_NAMES and spec.cache:
            formats["kv_format"] = str(value)
        else:
            size_name = spec.aliases.get(key, key)
            if size_name in sizes:
                raise UsageError(f"{size_name} is given twice: leave out {key}")
            sizes[size_name] = value
    complete = make_problem(operator, spec.sizes, sizes)
    if spec.cache:
        formats.setdefault("kv_format", DEFAULT_FORMAT)
    return Question(operator=operator, sizes={k: float(v) for k, v in complete.items()}, **formats)


def parse_question(name: str, text: str) -> Question:
    """Return the question of a line like ``M=4096,N=4096,K=4096,dtype=bf16``."""
    return read_question(name, dict(Configuration.parse(text)))
