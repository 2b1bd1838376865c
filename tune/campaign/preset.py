"""Presets: how much a campaign does."""

from dataclasses import dataclass

from foretune.collect.timing import Timing
from foretune.errors import UnknownName


@dataclass(frozen=True)
class Preset:
    """How much a campaign does.

    Attributes:
        train_problems: problems profiled.
        random_configs: configurations of each, the default among them.
        guided_configs: as many more of each, chosen by a predictor of the first ones.
        tune_problems: problems tuned, none of which was profiled.
        budget: measurements of each search.
        box_s: maximum seconds of timing per configuration.
        verify_s: seconds of interleaved rounds in each process of a verification.
    """

    train_problems: int
    random_configs: int
    guided_configs: int
    tune_problems: int
    budget: int
    box_s: float
    verify_s: float

    def timing(self) -> Timing:
        """Return the timing rule."""
        return Timing(max_seconds=self.box_s)


PRESETS = {
    "quick": Preset(10, 8, 4, 2, 10, 0.05, 0.5),
    "full": Preset(32, 32, 16, 12, 10, 0.25, 0.8),
}


def get_preset(name: str) -> Preset:
    """Return the preset called ``name``.

    Raises:
        UnknownName: there is none.
    """
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return PRESETS[name]
