"""What a predictor predicts, by the names of the run table's columns."""

from typing import Literal, get_args

Target = Literal["time_ms", "power_w"]
TARGETS: tuple[Target, ...] = get_args(Target)
MIN_ROWS = 5
"""Minimum number of successful runs to learn a target."""
