"""How much energy the choice of a configuration by prediction costs.

Energy is time × power, so both targets must be predicted. The choice by predicted energy is
compared with one that knows no power: the configuration that is predicted fastest.
"""

from dataclasses import dataclass
from typing import Self

import pandas as pd

from foretune.datasets.runs import tasks_of
from foretune.models.predictor import Predictor
from foretune.models.targets import measured_rows
from foretune.models.validation.metrics import score


@dataclass(frozen=True)
class EnergyChoice:
    """Mean energy above the least of a problem, as a fraction, on held-out rows.

    Attributes:
        by_energy: of the configuration with the least predicted energy.
        by_time: of the configuration that is predicted fastest.
        problems: number of problems with several metered configurations.
    """

    by_energy: float
    by_time: float
    problems: int

    @classmethod
    def from_table(cls, table: pd.DataFrame) -> Self | None:
        """Return the choices in `predict_energy`'s rows; None if no problem has several."""
        problems = int((table["task"].value_counts() > 1).sum())
        if not problems:
            return None
        groups = pd.factorize(table["task"])[0]
        truth = table["energy_mj"].to_numpy()

        def regret(predicted: str) -> float:
            return score(truth, table[predicted].to_numpy(), groups)["top1_regret"]

        return cls(regret("predicted_mj"), regret("predicted_ms"), problems)

    def __str__(self) -> str:
        """Return both in one line."""
        return (
            f"least energy: chosen by predicted energy, {self.by_energy:.1%} above the best "
            f"(by predicted time alone, {self.by_time:.1%}; {self.problems} problems)"
        )


def predict_energy(predictor: Predictor, runs: pd.DataFrame) -> pd.DataFrame:
    """Return measured and predicted energy of the metered rows of ``runs``.

    Columns: ``task`` (device and problem), ``energy_mj``, ``predicted_mj`` and ``predicted_ms``.
    """
    rows = measured_rows("power_w", measured_rows("time_ms", runs))
    predicted = predictor.predict(rows)
    return pd.DataFrame(
        {
            "task": tasks_of(rows),
            "energy_mj": rows["time_ms"].to_numpy(float) * rows["power_w"].to_numpy(float),
            "predicted_mj": predicted["energy_mj"].to_numpy(),
            "predicted_ms": predicted["time_ms"].to_numpy(),
        }
    )
