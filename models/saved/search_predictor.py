"""A predictor as it is used here, and whether it learned here."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from foretune.device import canonical_name
from foretune.errors import PredictorError

if TYPE_CHECKING:
    import pandas as pd

    from foretune.device import Device
    from foretune.models.predictor import Predictor
    from foretune.models.targets import Target


@dataclass(frozen=True)
class PredictorRequest:
    """What a predictor is wanted for.

    Attributes:
        kernel: its name.
        source_hash: identifies its code.
        device: where it runs.
        targets: what must be predicted.
    """

    kernel: str
    source_hash: str
    device: "Device"
    targets: "tuple[Target, ...]" = ("time_ms",)

    def check(self, predictor: "Predictor") -> None:
        """Do nothing if ``predictor`` says what is wanted.

        Raises:
            PredictorError: it is of another kernel, or has not learned a target.
        """
        require_kernel(predictor, self.kernel)
        if missing := [t for t in self.targets if t not in predictor.targets_]:
            raise PredictorError(
                f"the predictor has not learned {', '.join(missing)}: train it on runs that have "
                "it, or choose another objective"
            )


@dataclass(frozen=True)
class SearchPredictor:
    """A predictor that guides a search.

    Attributes:
        predictor: what predicts.
        mismatch: what it learned from that is not the same here: the device, or the kernel's code;
            empty where nothing is. Then measurements check it, and correct its intervals.
        shipped: whether it comes with Foretune, so that nobody asked for this very one.
    """

    predictor: "Predictor"
    mismatch: str = ""
    shipped: bool = False

    def __str__(self) -> str:
        runs = self.predictor.runs_
        devices = ", ".join(sorted(set(runs["device"].astype(str))))
        return f"trained on {len(runs)} runs of {devices}"

    @classmethod
    def for_device(cls, predictor: "Predictor", device: "Device") -> Self:
        """Return the guide for ``device``, foreign where there are no runs of a device so called.

        Nobody knows of which code its runs are: it is taken to be this one.
        """
        names = sorted(set(predictor.measured_runs()["device"].astype(str)))
        if canonical_name(device.name) in map(canonical_name, names):
            return cls(predictor)
        return cls(predictor, f"it learned from {', '.join(names)}, this is {device.name}")

    def has_valid_interval(self, device: "Device") -> bool:
        """Whether its intervals hold on ``device``: it learned there, or was corrected there."""
        return not self.mismatch or device.name in self.predictor.calibration_.devices

    def calibrated(self, runs: "pd.DataFrame") -> Self:
        """Return it with its predictor calibrated by ``runs``, measured here."""
        return replace(self, predictor=self.predictor.calibrate(runs))


def require_kernel(predictor: "Predictor", kernel: str) -> None:
    """Do nothing if ``predictor`` is of ``kernel``.

    Raises:
        PredictorError: it is of another.
    """
    if predictor.kernel_name_ != kernel:
        raise PredictorError(
            f"the predictor knows {predictor.kernel_name_!r}, not {kernel!r}: name one that was "
            f"trained on runs of {kernel}"
        )
