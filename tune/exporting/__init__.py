"""From measurements to a Python function of the problem that imports nothing."""

from foretune.tune.exporting.function import ExportedFunction, export_function
from foretune.tune.exporting.score import Score
from foretune.tune.exporting.shares import EfficiencyTable, efficiency_table

__all__ = ["EfficiencyTable", "ExportedFunction", "Score", "efficiency_table", "export_function"]
