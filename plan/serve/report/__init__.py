"""The HTML report of a plan: one file, works offline."""

from foretune.plan.serve.report.question import Question
from foretune.plan.serve.report.write import write_plan_report

__all__ = ["Question", "write_plan_report"]
