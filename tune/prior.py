"""What a search begins with: the predictor given, the one that comes with Foretune, or nothing."""

import warnings

from foretune.errors import ForetuneError, ForetuneWarning, PredictorError
from foretune.models import Predictor, find_pretrained
from foretune.models.saved.pretrained import Auto, NotShipped
from foretune.tune.session import Session


def predictor_for(session: Session, predictor: Predictor | Auto | None) -> Predictor | None:
    """Return ``predictor``; for ``"auto"`` the shipped one that fits, or None.

    Where none fits progress is told why; one that fits and cannot be read is warned of.

    Raises:
        PredictorError: it is of another kernel.
    """
    kernel = session.kernel
    if predictor != "auto":
        if predictor is not None and predictor.kernel_name_ != kernel.name:
            raise PredictorError(
                f"the predictor knows {predictor.kernel_name_!r}, not {kernel.name!r}: train one "
                f"on runs of {kernel.name}"
            )
        return predictor
    needs_power = any(objective.needs_power for objective in session.objectives)
    targets = ["time_ms", "power_w"] if needs_power else ["time_ms"]
    try:
        found = find_pretrained(kernel.name, kernel.source_hash, session.device, targets)
    except NotShipped as e:
        session.progress.say(str(e))
        return None
    except ForetuneError as e:
        warnings.warn(f"the shipped predictor is not used: {e}", ForetuneWarning, stacklevel=3)
        return None
    session.progress.say(f"prior: shipped predictor, trained on {found.training_['rows']} runs")
    return found
