"""Finds the kernel family of a run table."""

import pandas as pd

from foretune.errors import PredictorError
from foretune.family import Family
from foretune.features.arrays import Rows
from foretune.features.families.user_defined import BYTES, FLOPS, UserDefinedCost
from foretune.registry import load, registered


def family_for(name: str, runs: pd.DataFrame, preferred: Family | None = None) -> Family | None:
    """Return the family with a cost model for kernel ``name``, or None.

    Return the first of these whose columns ``runs`` has: ``preferred``, the registered kernel, the
    registered family; else `UserDefinedCost` if the runs have ``problem.flops`` and
    ``problem.bytes``. A registered kernel is returned even if its columns are missing, because its
    own error names them. Raises PredictorError if ``preferred`` has another name.
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
        if not _cost_error(family, runs):
            return family
    if {f"problem.{FLOPS}", f"problem.{BYTES}"} <= set(runs.columns):
        return UserDefinedCost(name, FLOPS, BYTES)
    return candidates[0] if len(candidates) == 1 and name in registered("kernels") else None


def explain_missing_roofline(name: str, runs: pd.DataFrame) -> str:
    """Return why the family of ``name`` cannot compute the cost of ``runs``; "" if it can."""
    if name not in registered("families"):
        return ""
    reason = _cost_error(load("families", name)(), runs)
    return reason and f"{name} is described by its sizes, and {reason}"


def _cost_error(family: Family, runs: pd.DataFrame) -> str:
    try:
        family.cost(*map(Rows(runs.iloc[:1]).group, ("problem", "config")))
    except KeyError as e:
        return f"the runs lack problem.{e.args[0]}"
    except TypeError:
        return "one of them is text"
    return ""


def find_family(
    name: str, kind: str | None, preferred: Family | None = None, source: str | None = None
) -> Family | None:
    """Return the family of kernel ``name`` with class name ``kind``; None if ``kind`` is None.

    Of a kernel and a family that are both called so, the one with the code of hash ``source``.
    Raises PredictorError if it is not installed.
    """
    if kind is None:
        return None
    groups = [load(g, name)() for g in ("kernels", "families") if name in registered(g)]
    known = [preferred, *groups] if preferred is not None else groups
    found = [f for f in known if f.name == name and type(f).__name__ == kind]
    if not found:
        raise PredictorError(f"kernel {name!r} ({kind}) is unknown here: install its package")
    return next((f for f in found if f.source_hash == source), found[0])
