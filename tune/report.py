"""The report: one HTML file that says what a campaign found, how sure that is, and how it was done.

It holds everything it needs, so it opens offline and can be mailed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.datasets import to_measurements
from foretune.datasets.schema import columns_of
from foretune.device import SPECS, Device
from foretune.errors import OutputError
from foretune.models.evaluation import Scores
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.tune.report_figures import (
    MOST_POINTS,
    pareto_figure,
    prediction_figure,
    trace_figure,
    worth_figure,
)
from foretune.tune.report_page import (
    Html,
    chart,
    count,
    duration,
    element,
    escape,
    join,
    number,
    page,
    percent,
    ratio,
    row,
    section,
    table,
)
from foretune.tune.results import TuneResult
from foretune.tune.report_wins import wins_table
