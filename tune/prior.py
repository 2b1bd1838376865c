"""What a search begins with: the predictor given, the one that comes with Foretune, or nothing."""

import warnings
from collections.abc import Sequence

from foretune.device import Device
from foretune.errors import ForetuneError, ForetuneWarning
from foretune.kernel import Kernel
from foretune.models import Predictor, find_pretrained
from foretune.models.saved.pretrained import Auto, NotShipped
from foretune.objective import Objective
from foretune.progress import Progress


def predictor_for(
    predictor: Predictor | Auto | None,
    kernel: Kernel,
    device: Device,
    objectives: Sequence[Objective],
    progress: Progress,
) -> Predictor | None:
    """Return ``predictor``; for ``"auto"`` the shipped one that fits, or None.

    Where none fits ``progress`` is told why; one that fits and cannot be read is warned of.

    Args:
        predictor: as the caller of `tune_problem` gave it.
        kernel: what is tuned.
        device: on what.
        objectives: those that must be predicted.
        progress: told what was found.
    """
    if predictor != "auto":
        return predictor
    needs_power = any(objective.needs_power for objective in objectives)
    targets = ["time_ms", "power_w"] if needs_power else ["time_ms"]
    try:
        found = find_pretrained(kernel.name, kernel.source_hash, device, targets)
    except NotShipped as e:
        progress.say(str(e))
        return None
    except ForetuneError as e:
        warnings.warn(f"the shipped predictor is not used: {e}", ForetuneWarning, stacklevel=3)
        return None
    progress.say(f"prior: shipped predictor, trained on {found.training_['rows']} runs")
    return found
