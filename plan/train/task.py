"""Work of a training step: batch, sequence length, precision, software."""

from dataclasses import dataclass
from typing import Literal, get_args

from foretune.errors import ProblemError, UnknownName
from foretune.plan.describe.formats import Formats

Precision = Literal["bf16", "fp8"]
Attention = Literal["flash", "unfused"]
Gradients = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class TrainingTask:
    """The work of one optimizer step.

    Attributes:
        batch: sequences of all replicas together.
        sequence: tokens per sequence.
        precision: of matrix products; other operations are bf16, the optimizer fp32.
        attention: ``flash`` keeps no scores; ``unfused`` writes and keeps scores and dropout masks,
            as before FlashAttention (arXiv:2205.14135).
        gradients: format of gradients summed over micro-batches and replicas.
        overlap: whether tensor-parallel exchanges overlap with products (Transformer Engine's user
            buffers).

    Raises:
        ProblemError: batch or sequence is not positive.
        UnknownName: an unknown precision, attention or gradient format.
    """

    batch: int
    sequence: int
    precision: Precision = "bf16"
    attention: Attention = "flash"
    gradients: Gradients = "fp32"
    overlap: bool = False

    def __post_init__(self) -> None:
        for field in ("batch", "sequence"):
            if getattr(self, field) < 1:
                raise ProblemError(f"{field}={getattr(self, field)} must be positive")
        for field, known in (
            ("precision", get_args(Precision)),
            ("attention", get_args(Attention)),
            ("gradients", get_args(Gradients)),
        ):
            if getattr(self, field) not in known:
                raise UnknownName(f"{field} of training", getattr(self, field), known)

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.sequence

    @property
    def gradient_bytes(self) -> float:
        """Bytes of a summed gradient."""
        return 4.0 if self.gradients == "fp32" else 2.0

    @property
    def formats(self) -> Formats:
        """Formats of matrix products."""
        return Formats(self.precision)
