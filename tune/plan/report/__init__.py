"""The HTML report of a plan: one file, works offline."""

from foretune.tune.plan.report.question import Question
from foretune.tune.plan.report.write import write_plan_report

__all__ = ["Question", "write_plan_report"]
