"""What is trained: how many sequences per step, how long they are, by what kind of software."""

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
        batch: sequences, of all replicas together.
        sequence: tokens of each.
        precision: of matrix products; everything between them is bf16, the optimizer fp32.
        attention: ``flash`` keeps no scores; ``unfused`` writes and keeps them, and masks of
            dropout, as was usual before FlashAttention (arXiv:2205.14135).
        gradients: in which they are summed over micro-batches and replicas.
        overlap: whether products run while tensor-parallel ranks exchange what they need or give
            (Transformer Engine's user buffers), not one after the other.

    Raises:
        ProblemError: there is nothing to train on.
        UnknownName: no such precision, attention or gradients.
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
        """Tokens of a step."""
        return self.batch * self.sequence

    @property
    def gradient_bytes(self) -> float:
        """Bytes of a summed gradient."""
        return 4.0 if self.gradients == "fp32" else 2.0

    @property
    def formats(self) -> Formats:
        """The formats of matrix products."""
        return Formats(self.precision)
