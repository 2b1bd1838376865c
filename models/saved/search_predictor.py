"""What guides a search, and whether its training data match the device and kernel."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from foretune.device import canonical_name
from foretune.errors import PredictorError
from foretune.models.saved.guides import DEFAULT_LOG_SPREAD, GuideModel, log_spread_of, make_guide

if TYPE_CHECKING:
    import pandas as pd

    from foretune.device import Device
    from foretune.models.predictor import Predictor
    from foretune.models.targets import Target


@dataclass(frozen=True)
class PredictorRequest:
    """The kernel, device and targets that a predictor must have.

    ``source_hash`` identifies the kernel's code.
    """

    kernel: str
    source_hash: str
    device: "Device"
    targets: "tuple[Target, ...]" = ("time_ms",)

    def check(self, predictor: "Predictor | GuideModel") -> None:
        """Raise `PredictorError` if ``predictor`` is of another kernel or lacks a target.

        A user's model shows that only when it predicts.
        """
        if isinstance(predictor, GuideModel):
            return
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
        mismatch: how its training differs (device or kernel code); empty if it does not. With a
            mismatch, as for every user's model, measurements check the predictor and correct it.
        shipped: whether it is shipped with Foretune, so not named by the user.
    """

    predictor: "Predictor | GuideModel"
    mismatch: str = ""
    shipped: bool = False

    def __str__(self) -> str:
        if isinstance(self.predictor, GuideModel):
            return str(self.predictor)
        runs = self.predictor.runs_
        devices = ", ".join(sorted(set(runs["device"].astype(str))))
        return f"trained on {len(runs)} runs of {devices}"

    @classmethod
    def for_device(cls, model: Any, device: "Device") -> Self:
        """Return a model (`make_guide`) as guide for ``device``.

        It has a mismatch if it has no runs there, or is a user's. The kernel's code is assumed to
        match.
        """
        predictor = make_guide(model)
        if isinstance(predictor, GuideModel):
            return cls(predictor, f"{predictor} is your own model")
        names = sorted(set(predictor.measured_runs()["device"].astype(str)))
        if canonical_name(device.name) in map(canonical_name, names):
            return cls(predictor)
        return cls(predictor, f"it learned from {', '.join(names)}, this is {device.name}")

    def has_valid_interval(self, device: "Device") -> bool:
        """Whether its intervals hold on ``device``: it was trained or calibrated there."""
        if isinstance(self.predictor, GuideModel):
            return False
        return not self.mismatch or device.name in self.predictor.calibration_.devices

    def calibrated(self, runs: "pd.DataFrame") -> Self:
        """Return the guide with its predictor calibrated with ``runs``; a user's model as it is."""
        if isinstance(self.predictor, GuideModel):
            return self
        return replace(self, predictor=self.predictor.calibrate(runs))

    def log_spread(self, device: "Device", predicted: "pd.DataFrame | None" = None) -> float:
        """Return the standard deviation of log errors.

        A user's model has only the intervals in the table ``predicted``.
        """
        if isinstance(self.predictor, GuideModel):
            return DEFAULT_LOG_SPREAD if predicted is None else log_spread_of(predicted)
        return self.predictor.log_spread(device=device.name)


def require_kernel(predictor: "Predictor", kernel: str) -> None:
    """Raise `PredictorError` unless ``predictor`` is of ``kernel``."""
    if predictor.kernel_name_ != kernel:
        raise PredictorError(
            f"the predictor knows {predictor.kernel_name_!r}, not {kernel!r}: name one that was "
            f"trained on runs of {kernel}"
        )
