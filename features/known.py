"""Which family knows a kernel's runs."""

import pandas as pd

from foretune.errors import PredictorError
from foretune.family import Family
from foretune.features.arrays import Columns
from foretune.features.families.given_work import BYTES, FLOPS, GivenWork
from foretune.registry import load, registered


def family_for(name: str, runs: pd.DataFrame, given: Family | None = None) -> Family | None:
    """Return who knows the cost of runs of kernel ``name``, or None.

    The kernel ``given``, the registered kernel, or the registered family,
    whichever finds its columns in ``runs``; a kernel of ours that does not is returned all the
    same, so that its own error says what is missing. Of a kernel that nobody knows, columns
    ``problem.flops`` and ``problem.bytes`` are the work.

    Raises:
        PredictorError: the kernel ``given`` has another name.
    """
    if given is not None:
        if given.name != name:
            raise PredictorError(f"the runs are of kernel {name!r}, not of {given.name!r}")
        if given.knows_cost:
            return given
    candidates: list[Family] = [
        load(group, name)() for group in ("kernels", "families") if name in registered(group)
    ]
    for family in candidates:
        if _understands(family, runs):
            return family
    if {f"problem.{FLOPS}", f"problem.{BYTES}"} <= set(runs.columns):
        return GivenWork(name, FLOPS, BYTES)
    return candidates[0] if len(candidates) == 1 and name in registered("kernels") else None


def why_unknown(name: str, runs: pd.DataFrame) -> str:
    """Return why no family knows the cost of runs of kernel ``name``; nothing if there is none."""
    if name not in registered("families"):
        return ""
    reason = _misunderstood(load("families", name)(), runs)
    return reason and f"{name} is known by its sizes, and {reason}"


def _understands(family: Family, runs: pd.DataFrame) -> bool:
    return not _misunderstood(family, runs)


def _misunderstood(family: Family, runs: pd.DataFrame) -> str:
    one = runs.iloc[:1]
    try:
        family.cost(Columns(one, "problem"), Columns(one, "config"))
    except KeyError as e:
        return f"the runs lack problem.{e.args[0]}"
    except TypeError:
        return "one of them is text"
    return ""


def known_family(name: str, kind: str | None, given: Family | None = None) -> Family | None:
    """Return the family of kernel ``name`` whose class is called ``kind``; None if ``kind`` is.

    Raises:
        PredictorError: it is not installed here.
    """
    if kind is None:
        return None
    groups = [load(g, name)() for g in ("kernels", "families") if name in registered(g)]
    for family in [*([given] if given is not None else []), *groups]:
        if family.name == name and type(family).__name__ == kind:
            return family
    raise PredictorError(f"kernel {name!r} ({kind}) is not known here: install its package")
