"""From measurements to a Python function of the problem that imports nothing."""

from foretune.tune.exporting.function import Exported, export_function
from foretune.tune.exporting.score import Score
from foretune.tune.exporting.shares import Shares, shares_of

__all__ = ["Exported", "Score", "Shares", "export_function", "shares_of"]
