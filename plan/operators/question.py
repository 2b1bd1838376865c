"""Questions about operators: all sizes and formats, and how a line of text states them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from foretune.errors import UnknownName, UsageError
from foretune.plan.describe.formats import table_name
from foretune.plan.operators.operator_specs import OPERATORS, OperatorSpec, operator_name
from foretune.problem import make_problem
from foretune.space import Configuration
from foretune.values import Value

DEFAULT_FORMAT = "bf16"
FORMAT_NAMES = ("dtype", "format")
"""Names of the number format among the sizes."""
CACHE_FORMAT_NAMES = ("kv_dtype", "kv_format")
"""Names of the cache's number format."""
PARALLEL_SIZES = ("tp", "ep")
"""Sizes that are columns of the configuration."""
DISTRIBUTION = "power_law_1.2"
"""How tokens are distributed over experts: unevenly, as in measured tables."""


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
            sizes["distribution"] = DISTRIBUTION
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
        size_name = self.spec.aliases.get(name, name)
        if size_name not in self.sizes:
            raise UnknownName(f"size of {self.operator}", name, self.sizes)
        return replace(self, sizes={**self.sizes, size_name: value})


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
