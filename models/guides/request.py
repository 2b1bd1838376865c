"""What a search asks of its guide: kernel, device and targets."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretune.errors import PredictorError

if TYPE_CHECKING:
    from foretune.device import Device
    from foretune.models.predictor import Predictor

AUTO = "auto"
NONE = "none"
"""What a user may write instead of a predictor: the shipped one if it fits, or none at all."""


@dataclass(frozen=True)
class PredictorRequest:
    """The kernel, device and targets that a predictor must have.

    ``source_hash`` identifies the kernel's code. Time must be predicted, and perhaps power.
    """

    kernel: str
    source_hash: str
    device: "Device"
    needs_power: bool = False

    def missing_targets(self, predictor: "Predictor") -> list[str]:
        """Return the targets that ``predictor`` has not learned."""
        needed = ["time_ms"]
        if self.needs_power:
            needed.append("power_w")
        return [target for target in needed if target not in predictor.targets_]

    def check(self, predictor: "Predictor") -> None:
        """Raise `PredictorError` if ``predictor`` is of another kernel or lacks a target."""
        require_kernel(predictor, self.kernel)
        missing = self.missing_targets(predictor)
        if missing:
            raise PredictorError(
                f"the predictor has not learned {', '.join(missing)}: train it on runs that have "
                "it, or choose another objective"
            )


def require_kernel(predictor: "Predictor", kernel: str) -> None:
    """Raise `PredictorError` unless ``predictor`` is of ``kernel``."""
    if predictor.kernel_name_ != kernel:
        raise PredictorError(
            f"the predictor knows {predictor.kernel_name_!r}, not {kernel!r}: name one that was "
            f"trained on runs of {kernel}"
        )
