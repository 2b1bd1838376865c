"""Which family knows a kernel's runs."""

import pandas as pd

from foretune.errors import PredictorError
from foretune.family import Family
from foretune.features.arrays import Columns
from foretune.features.families.user_defined import BYTES, FLOPS, UserDefinedCost
from foretune.registry import load, registered


def family_for(name: str, runs: pd.DataFrame, preferred: Family | None = None) -> Family | None:
    """Return who knows the cost of runs of kernel ``name``, or None.

    The kernel ``preferred``, the registered kernel, or the registered family,
    whichever finds its columns in ``runs``; a kernel of ours that does not is returned all the
    same, so that its own error says what is missing. Of a kernel that nobody knows, columns
    ``problem.flops`` and ``problem.bytes`` are the work.

    Raises:
        PredictorError: the kernel ``preferred`` has another name.
    """
    if preferred is not None:
        if preferred.name != name:
            raise PredictorError(f"the runs are of kernel {name!r}, not of {preferred.name!r}")
        if preferred.has_cost_model:
            return preferred
    candidates: list[Family] = [
        load(group, name)() for group in ("kernels", "families") if name in registered(group)
    ]
    for family in candidates:
        if _fits_runs(family, runs):
            return family
    if {f"problem.{FLOPS}", f"problem.{BYTES}"} <= set(runs.columns):
        return UserDefinedCost(name, FLOPS, BYTES)
    return candidates[0] if len(candidates) == 1 and name in registered("kernels") else None


def explain_missing_roofline(name: str, runs: pd.DataFrame) -> str:
    """Return why no family knows the cost of runs of kernel ``name``; nothing if there is none."""
    if name not in registered("families"):
        return ""
    reason = _cost_error(load("families", name)(), runs)
    return reason and f"{name} is known by its sizes, and {reason}"


def _fits_runs(family: Family, runs: pd.DataFrame) -> bool:
    return not _cost_error(family, runs)


def _cost_error(family: Family, runs: pd.DataFrame) -> str:
    one = runs.iloc[:1]
    try:
        family.cost(Columns(one, "problem"), Columns(one, "config"))
    except KeyError as e:
        return f"the runs lack problem.{e.args[0]}"
    except TypeError:
        return "one of them is text"
    return ""


def find_family(name: str, kind: str | None, preferred: Family | None = None) -> Family | None:
    """Return the family of kernel ``name`` whose class is called ``kind``; None if ``kind`` is.

    Raises:
        PredictorError: it is not installed here.
    """
    if kind is None:
        return None
    groups = [load(g, name)() for g in ("kernels", "families") if name in registered(g)]
    for family in [*([preferred] if preferred is not None else []), *groups]:
        if family.name == name and type(family).__name__ == kind:
            return family
    raise PredictorError(f"kernel {name!r} ({kind}) is not known here: install its package")
