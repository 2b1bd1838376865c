"""The report's table of winners: what tuning each problem brought, in numbers and at a glance."""

import math
from collections.abc import Sequence

from foretune.objective import Objective
from foretune.space import Configuration
from foretune.tune.report.page import Html, element, join, number, ratio, row, table
from foretune.tune.results import Contender, TuneResult

_WIDTH, _HEIGHT = 160.0, 16.0


def wins_table(results: Sequence[TuneResult]) -> Html:
    """Return one group of rows per problem: the numbers, then the configuration that was kept."""
    unit = results[0].objective.unit
    gain = "Speedup" if results[0].objective is Objective.TIME else "Gain"
    labels = [
        "Problem", f"Default, {unit}", f"Tuned, {unit}", f"{gain}, 95 % interval",
        "Against the library", "Verdict", "Measurements",
    ]  # fmt: skip
    bounds = _bounds(results)
    groups = [_group(result, labels, bounds) for result in results]
    return table("What tuning brought, by problem", labels, groups, class_="wins")


def best_candidate(result: TuneResult) -> Contender:
    """Return the candidate with the best value, winner or not; the default if there is none."""
    candidates = [c for c in result.contenders[1:] if c.config is not None]
    return min(candidates, key=lambda c: c.value, default=result.baseline)


def library_ratio(result: TuneResult) -> float:
    """Return how many times better the winner is than the library; NaN without one."""
    return result.library.value / result.winner.value if result.library else math.nan


def _group(
    result: TuneResult, labels: Sequence[str], bounds: tuple[float, float]
) -> tuple[Html, Html]:
    verdict = (
        element("span", "faster" if result.objective is Objective.TIME else "better", class_="won")
        if result.verified
        else element("span", "no measurable win", element("small", "default kept"))
    )
    cells = [
        str(result.problem).replace(",", ", "),
        number(result.baseline.value),
        number(result.winner.value),
        _speedup(result, bounds),
        _against_library(result),
        verdict,
        len(result.trace),
    ]
    chips = _chips(result.winner.config, result.baseline.config)
    config = element("tr", element("td", chips, colspan=len(labels)), class_="config")
    return row(cells, labels=labels), config


def _speedup(result: TuneResult, bounds: tuple[float, float]) -> Html:
    shown = best_candidate(result) if not result.verified else result.winner
    interval = f"{shown.ratio_low:.2f} – {shown.ratio_high:.2f}"
    if shown is result.baseline:
        return Html("–")
    if result.verified:
        value = join((element("b", ratio(shown.ratio)), element("small", interval)))
    else:
        note = f"best candidate {ratio(shown.ratio)}, {interval}"
        value = join((element("b", ratio(1.0)), element("small", note)))
    return element("div", value, _strip(shown, result, bounds))


def _against_library(result: TuneResult) -> Html:
    if result.library is None:
        return Html("–")
    value = library_ratio(result)
    better, worse = (
        ("faster", "slower") if result.objective is Objective.TIME else ("better", "worse")
    )
    word = f"{better} than" if value > 1.005 else f"{worse} than" if value < 0.995 else "level with"
    return element("div", f"{ratio(value)} ", element("small", f"{word} {result.library.name}"))


def _strip(shown: Contender, result: TuneResult, bounds: tuple[float, float]) -> Html:
    """Return the interval as a bar on a scale all rows share, with a line where nothing changes."""

    def x(value: float) -> float:
        low, high = math.log(bounds[0]), math.log(bounds[1])
        place = (math.log(value) - low) / (high - low) if value > 0 else 0.0
        return round(5 + min(max(place, 0), 1) * (_WIDTH - 10), 1)

    colour = "var(--measured)" if result.verified else "var(--quiet)"
    left, right = x(shown.ratio_low), x(shown.ratio_high)
    middle = _HEIGHT / 2
    marks = [
        f'<line x1="{x(1)}" x2="{x(1)}" y1="0" y2="{_HEIGHT}" stroke="var(--quiet)"/>',
        f'<path d="M{left} {middle}H{max(right, left + 1)}" stroke="{colour}" stroke-width="3"/>',
        f'<circle cx="{x(shown.ratio)}" cy="{middle}" r="4" fill="{colour}"/>',
    ]
    if result.library is not None:
        at = x(result.baseline.value / result.library.value)
        marks.append(
            f'<path d="M{at} {middle - 5}l5 5l-5 5l-5-5z" fill="none" '
            'stroke="var(--library)" stroke-width="2"/>'
        )
    box = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
    return Html(f'<svg class="strip" viewBox="{box}" aria-hidden="true">{"".join(marks)}</svg>')


def _bounds(results: Sequence[TuneResult]) -> tuple[float, float]:
    """Return the ratios at the ends of every row's strip; an endless interval is cut there."""
    ratios = [1.0]
    for result in results:
        shown = result.winner if result.verified else best_candidate(result)
        ratios += [shown.ratio_low, shown.ratio, shown.ratio_high]
        if result.library is not None:
            ratios.append(result.baseline.value / result.library.value)
    finite = [r for r in ratios if math.isfinite(r) and r > 0]
    return min(*finite, 0.95), max(*finite, 1.05)


def _chips(config: Configuration | None, default: Configuration | None) -> Html:
    """Return the parameters, those that differ from the default first in weight."""
    default = default or Configuration()
    items = []
    for name, value in (config or {}).items():
        changed = name not in default or default[name] != value
        was = f"default: {default[name]}" if changed and name in default else None
        text = element("code", f"{name}={value}")
        items.append(element("li", text, class_="changed" if changed else None, title=was))
    return element("ul", *items, class_="chips")
