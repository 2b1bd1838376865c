"""The report of a campaign, written when it finishes or again later."""

import pandas as pd

from foretune.datasets.runs import read_runs
from foretune.device import Device
from foretune.kernel import Kernel
from foretune.models.explanation import importance, is_explainable, parameter_importance
from foretune.tune.campaign.finished import Campaign
from foretune.tune.campaign.observer import CampaignObserver, CampaignStart
from foretune.tune.report.rates import rates
from foretune.tune.report.write import ReportData, write_report


class ReportObserver(CampaignObserver):
    """Writes ``report.html`` when a campaign finishes."""

    def on_start(self, start: CampaignStart) -> None:
        """Remember what the report is about."""
        self._start = start

    def on_finish(self, campaign: Campaign) -> None:
        """Write the report."""
        kernel, device = self._start.kernel, self._start.device
        runs = read_runs(self._start.folder.runs)
        write_report(campaign.report, _report_data(kernel, device, campaign, runs))


def _report_data(
    kernel: Kernel, device: Device, campaign: Campaign, runs: pd.DataFrame
) -> ReportData:
    predictor, results = campaign.training.predictor, list(campaign.results)
    return ReportData(
        kernel=kernel.name,
        kernel_location=kernel.location or kernel.name,
        device=device,
        objective=results[0].objective,
        runs=runs,
        validation=campaign.training.validation,
        learned=predictor.training_,
        results=results,
        importance=parameter_importance(
            predictor, [r.problem for r in results], kernel.space, device
        ),
        environment=str(runs["environment"].iloc[-1]),
        started_at=str(runs["recorded_at"].min()),
        seconds=campaign.seconds,
        mlflow_uri=campaign.mlflow_uri,
        rates=[list(rates(kernel, r, device)) for r in results],
        space_size=max(len(kernel.space(r.problem)) for r in results),
        attribution=importance(predictor) if is_explainable(predictor) else None,
    )
