"""From measurements to a Python function of the problem that imports nothing."""

from foretune.tune.heuristics.efficiency import EfficiencyTable, Score, efficiency_table
from foretune.tune.heuristics.export import ExportedFunction, export_function

__all__ = ["EfficiencyTable", "ExportedFunction", "Score", "efficiency_table", "export_function"]
