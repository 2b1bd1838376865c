"""Charts as data, which templates render as inline SVG.

Positions are percentages of the chart's area, so charts scale to the page without a script.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


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
        low, high = self.low, self.high
        if self.log:
            if not value > 0:
                return math.nan
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(100 * (value - low) / (high - low), 2)


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
        positions = (
            (*self.position(x, y), t) for x, y, t in zip(points.x, points.y, texts, strict=True)
        )
        return [p for p in positions if 0 <= p[0] <= 100 and 0 <= p[1] <= 100]

    def path(self, line: Line) -> str:
        """Return the points of a line as an SVG attribute."""
        x, y = list(line.x), list(line.y)
        if line.steps:
            x = [value for value in x for _ in range(2)][1:]
            y = [value for value in y for _ in range(2)][:-1]
        positions = (self.position(*point) for point in zip(x, y, strict=True))
        return " ".join(f"{a:g},{b:g}" for a, b in positions if math.isfinite(a + b))

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
        parts, left = [], self.start
        for segment in self.segments:
            value = segment.values[bar]
            if value > 0:
                position = self.axis.position(left)
                width = round(self.axis.position(left + value) - position, 2)
                parts.append((position, width, segment, value))
            left += value
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
    finite = [v for v in values if math.isfinite(v) and v > 0]
    if not finite:
        return Axis(title, 0.0, 1.0, ())
    low, high = min(finite), max(finite)
    if high / low < 4 and not force_log:
        margin = 0.08 * (high - low) or 0.1 * high
        return linear_axis(max(low - margin, 0), high + margin, title)
    margin = max((high / low) ** 0.06, 1.05)
    low, high = low / margin, high * margin
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1,)):
        ticks = [d * 10.0**e for e in exponents for d in digits if low <= d * 10.0**e <= high]
        if len(ticks) <= 8:
            break
    labels = (f"{t:,.0f}" if t >= 1 else f"{t:.9f}".rstrip("0") for t in ticks)
    return Axis(title, low, high, list(zip(ticks, labels, strict=True)), log=True)


def linear_axis(low: float, high: float, title: str, suffix: str = "") -> Axis:
    """Return an axis from ``low`` to ``high`` with about five ticks at round values."""
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.999)
    values = np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return Axis(title, low, high, [(float(v), f"{v:,.{decimals}f}{suffix}") for v in values])


def count_axis(n: int, title: str) -> Axis:
    """Return an axis from 1 to ``n`` that has room for marks at both ends."""
    ticks = range(1, n + 1, max(1, round(n / 10)))
    return Axis(title, 0.4, n + 0.6, [(i, f"{i}") for i in ticks])
