"""What tuning brought, as intervals on one scale that all problems share."""

import math
from collections.abc import Sequence

from foretune.tune.results import Comparison, TuneResult

_WIDTH, _MARGIN = 160.0, 5.0


class RatioScale:
    """The scale of the strips that show every problem's ratio to its default."""

    def __init__(self, results: Sequence[TuneResult]) -> None:
        ratios = [1.0]
        for result in results:
            shown = self.shown(result)
            ratios += [shown.ratio_low, shown.ratio, shown.ratio_high]
            if result.library is not None:
                ratios.append(result.baseline.value / result.library.value)
        finite = [r for r in ratios if math.isfinite(r) and r > 0]
        self._low, self._high = math.log(min(*finite, 0.95)), math.log(max(*finite, 1.05))

    @staticmethod
    def shown(result: TuneResult) -> Comparison:
        """Return the winner, or the best candidate that did not win; the default if none ran."""
        if result.verified:
            return result.winner
        candidates = [c for c in result.contenders[1:] if c.config is not None]
        return min(candidates, key=lambda c: c.value, default=result.baseline)

    def x(self, ratio: float) -> float:
        """Return where a ratio stands in a strip; an endless interval is cut at its end."""
        fraction = (math.log(ratio) - self._low) / (self._high - self._low) if ratio > 0 else 0.0
        return round(_MARGIN + min(max(fraction, 0), 1) * (_WIDTH - 2 * _MARGIN), 1)
