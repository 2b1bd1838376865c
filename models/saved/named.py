"""What a predictor may be called, wherever one is taken.

- a `Predictor`;
- a folder that holds one, or one of whose subfolders does: a campaign's;
- ``models:/NAME@ALIAS``, ``models:/NAME/VERSION`` or ``runs:/ID``: one logged to MLflow;
- ``"auto"``: the one that comes with Foretune;
- ``"none"`` or None: none.
"""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from foretune.errors import ForetuneError, ForetuneWarning, PredictorError, UsageError
from foretune.models.saved.guide import Guide, Use
from foretune.models.saved.pretrained import NotShipped, find_pretrained
from foretune.models.saved.saved_folder import CARD

if TYPE_CHECKING:
    from foretune.models.predictor import Predictor

Named: TypeAlias = "Predictor | str | os.PathLike[str] | None"
AUTO, NONE = "auto", "none"
TRACKED = ("models:/", "runs:/")
DEEPEST = 3
"""Levels below a folder where its predictor is looked for: an MLflow model has it two below."""
KINDS = "folder of one or of a campaign, models:/NAME@ALIAS or runs:/ID"


def read_predictor(named: Named) -> "Predictor":
    """Return the predictor called ``named``.

    Raises:
        UsageError: it is ``auto`` or none, and nobody says of which kernel.
        PredictorError: there is none, there are several, or it is of another version.
        TrackingError: MLflow does not have it.
    """
    from foretune.models.predictor import Predictor

    if isinstance(named, Predictor):
        return named
    if named is None or str(named) in (AUTO, NONE):
        raise UsageError(f"predictor {str(named)!r} says nothing here: name a {KINDS}")
    if not isinstance(named, (str, os.PathLike)):
        raise UsageError(f"predictor is {named!r}: give a Predictor, or name a {KINDS}")
    if not str(named).startswith(TRACKED):
        return Predictor.load(_folder(Path(named)))
    from foretune.models.saved.tracked import downloaded

    with downloaded(str(named)) as folder:
        return Predictor.load(_folder(folder))


def find_guide(named: Named, use: Use, say: Callable[[str], None]) -> Guide | None:
    """Return the predictor called ``named`` for what it is wanted for; None where none is.

    Args:
        named: what it is called.
        use: for what it is wanted.
        say: told which one comes with Foretune, or why none does, and what is not the same here.

    Raises:
        PredictorError, TrackingError, UsageError: the one that was asked for cannot be used.
    """
    if named is None or (isinstance(named, str) and named == NONE):
        return None
    if isinstance(named, str) and named == AUTO:
        guide = _shipped(use, say)
    else:
        guide = Guide.of(read_predictor(named), use.device)
        use.refuse(guide.predictor)
    if guide is not None and guide.foreign:
        say(f"the predictor is checked and corrected by what is measured: {guide.foreign}")
    return guide


def _shipped(use: Use, say: Callable[[str], None]) -> Guide | None:
    try:
        guide = find_pretrained(use)
    except NotShipped as e:
        say(str(e))
        return None
    except ForetuneError as e:
        warnings.warn(f"the shipped predictor is not used: {e}", ForetuneWarning, stacklevel=4)
        return None
    say(f"prior: shipped predictor, {guide}")
    return guide


def _folder(named: Path) -> Path:
    """Return where below ``named`` the predictor lies; ``named`` itself if nowhere."""
    levels = ("*/" * depth + CARD for depth in range(DEEPEST + 1))
    found = [path.parent for level in levels for path in sorted(named.glob(level))]
    if len(found) > 1 and found[0] != named:
        listed = ", ".join(map(str, found[:4]))
        raise PredictorError(f"{named} holds {len(found)} predictors: name one of {listed}")
    return found[0] if found else named
