"""Charts as data, which templates render as inline SVG.

Positions are percentages of the chart's area, so charts scale to the page without a script.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

MIN_LOG_RANGE = 4
"""An axis is logarithmic if its largest value is at least so many times the smallest."""
MAX_LOG_TICKS = 8


@dataclass(frozen=True)
class Axis:
    """The range of one coordinate; ``title`` is quantity and unit, ``ticks`` values with labels."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def position(self, value: float) -> float:
        """Return the position of ``value`` in percent from the low end; NaN if it has none."""
        if not self.log:
            return round(100 * (value - self.low) / (self.high - self.low), 2)
        if not value > 0:
            return math.nan
        low = math.log(self.low)
        high = math.log(self.high)
        return round(100 * (math.log(value) - low) / (high - low), 2)


@dataclass(frozen=True)
class Points:
    """Marks in a CSS color (``@…``: a color of the page), with a tooltip each or none.

    Marks outside the axes are not drawn.
    """

    x: Sequence[float]
    y: Sequence[float]
    color: str
    symbol: str = "circle"
    size_px: float = 9
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class Line:
    """A line through points, clipped at the axes; with ``steps``, constant until the next point.

    ``dash`` has SVG's dash lengths, and is empty for a solid line.
    """

    x: Sequence[float]
    y: Sequence[float]
    color: str
    width_px: float = 2
    dash: str = ""
    steps: bool = False


@dataclass(frozen=True)
class Spans:
    """Vertical bars from ``low`` to ``high``: intervals."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    color: str
    width_px: float = 9


@dataclass(frozen=True)
class Note:
    """A short text to the right of a point."""

    x: float
    y: float
    text: str


ChartLayer = Points | Line | Spans | Note


@dataclass(frozen=True)
class Chart:
    """Layers between two axes, the first at the bottom; a square chart is as wide as it is high."""

    x: Axis
    y: Axis
    layers: Sequence[ChartLayer]
    height_px: int = 290
    square: bool = False

    def marks(self, points: Points) -> list[tuple[float, float, str]]:
        """Return position and text of the marks within the axes."""
        texts = points.texts or [""] * len(points.x)
        marks = []
        for x, y, text in zip(points.x, points.y, texts, strict=True):
            left, top = self.position(x, y)
            if 0 <= left <= 100 and 0 <= top <= 100:
                marks.append((left, top, text))
        return marks

    def path(self, line: Line) -> str:
        """Return the points of a line as an SVG attribute."""
        corners = list(zip(line.x, line.y, strict=True))
        if line.steps:
            corners = _stairs(corners)
        positions = [self.position(x, y) for x, y in corners]
        known = [(left, top) for left, top in positions if math.isfinite(left + top)]
        return " ".join(f"{left:g},{top:g}" for left, top in known)

    def spans(self, spans: Spans) -> list[tuple[float, float, float]]:
        """Return position and ends of every interval, clipped at the axis."""
        return [
            (self.x.position(x), self._vertical_position(high), self._vertical_position(low))
            for x, low, high in zip(spans.x, spans.low, spans.high, strict=True)
        ]

    def position(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point in percent from the left and from the top."""
        return self.x.position(x), round(100 - self.y.position(y), 2)

    def _vertical_position(self, value: float) -> float:
        position = self.y.position(value) if value > 0 or not self.y.log else 0.0
        return round(100 - min(max(position, 0.0), 100.0), 2)


@dataclass(frozen=True)
class Segment:
    """A part of stacked bars, with a value per bar; a labeled one shows its name if it fits."""

    name: str
    color: str
    values: Sequence[float]
    labeled: bool = True


@dataclass(frozen=True)
class Mark:
    """A line beside each bar with a value that is not NaN, optionally with an interval."""

    name: str
    values: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Bars:
    """Horizontal bars of segments from ``start``, the first on top; ``ends`` are texts beside."""

    labels: Sequence[str]
    segments: Sequence[Segment]
    axis: Axis
    mark: Mark | None = None
    ends: Sequence[str] = ()
    start: float = 0.0

    def parts(self, bar: int) -> list[tuple[float, float, Segment, float]]:
        """Return the left end and width in percent, the segment and its value, of one bar."""
        parts = []
        start = self.start
        for segment in self.segments:
            value = segment.values[bar]
            if value > 0:
                left = self.axis.position(start)
                width = round(self.axis.position(start + value) - left, 2)
                parts.append((left, width, segment, value))
            start += value
        return parts

    def mark_positions(self, bar: int) -> dict[str, float]:
        """Return the positions of a bar's mark: ``at``, and ``low`` and ``high`` if known."""
        if self.mark is None or not math.isfinite(self.mark.values[bar]):
            return {}
        positions = {"at": self.axis.position(self.mark.values[bar])}
        if len(self.mark.low):
            positions |= {
                "low": self.axis.position(self.mark.low[bar]),
                "high": self.axis.position(self.mark.high[bar]),
            }
        return positions


def value_axis(values: Iterable[float], title: str, force_log: bool = False) -> Axis:
    """Return an axis for positive ``values``; a wide range is logarithmic, with ticks 1, 2, 5."""
    positive = [value for value in values if math.isfinite(value) and value > 0]
    if not positive:
        return Axis(title, 0.0, 1.0, ())
    least = min(positive)
    most = max(positive)
    if most / least < MIN_LOG_RANGE and not force_log:
        margin = 0.08 * (most - least) or 0.1 * most
        return linear_axis(max(least - margin, 0), most + margin, title)

    factor = max((most / least) ** 0.06, 1.05)
    low = least / factor
    high = most * factor
    ticks = _log_ticks(low, high, digits=(1, 2, 5))
    if len(ticks) > MAX_LOG_TICKS:
        ticks = _log_ticks(low, high, digits=(1,))
    labels = [f"{t:,.0f}" if t >= 1 else f"{t:.9f}".rstrip("0") for t in ticks]
    return Axis(title, low, high, list(zip(ticks, labels, strict=True)), log=True)


def _log_ticks(low: float, high: float, digits: Sequence[int]) -> list[float]:
    """Return the numbers between ``low`` and ``high`` with one of these digits, then zeros."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
    return [tick for tick in ticks if low <= tick <= high]


def linear_axis(low: float, high: float, title: str, suffix: str = "") -> Axis:
    """Return an axis from ``low`` to ``high`` with about five ticks at round values."""
    # The step is 1, 2, 5 or 10 times a power of ten.
    exact_step = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(exact_step))
    steps = [digit * power for digit in (1, 2, 5, 10)]
    step = next(step for step in steps if step >= exact_step * 0.999)

    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    values = np.arange(first, last + 1) * step
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return Axis(title, low, high, [(float(v), f"{v:,.{decimals}f}{suffix}") for v in values])


def count_axis(n: int, title: str) -> Axis:
    """Return an axis from 1 to ``n`` that has room for marks at both ends."""
    ticks = range(1, n + 1, max(1, round(n / 10)))
    return Axis(title, 0.4, n + 0.6, [(i, f"{i}") for i in ticks])


def _stairs(corners: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a line that keeps each value until the next point."""
    stairs = list(corners[:1])
    for (_, y), (next_x, next_y) in pairwise(corners):
        stairs += [(next_x, y), (next_x, next_y)]
    return stairs
