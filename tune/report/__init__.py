"""The HTML report of a campaign: one file, works offline."""

from foretune.tune.report.write import ReportData, headline, write_report

__all__ = ["ReportData", "headline", "write_report"]
