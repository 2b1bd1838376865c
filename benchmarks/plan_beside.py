"""Ours and AIConfigurator's estimates of the same deployments, side by side."""

import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.measured_deployments import MeasuredDeployments

NAMES = {"tpot_ms": "tpot", "ttft_ms": "ttft"}


def ask(rival: Path, table: Path) -> pd.DataFrame:
    """Return AIConfigurator's answers about all rows of a table.

    Args:
        rival: an interpreter that has the package, or a file of its answers.
        table: the file of measured deployments.
    """
    if rival.suffix == ".parquet":
        return pd.read_parquet(rival)
    script = Path(__file__).with_name("plan_aiconfigurator.py")
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.parquet"
        subprocess.run([rival, "-P", script, table, answers], check=True)
        return pd.read_parquet(answers)


def beside(
    data: MeasuredDeployments, ours: pd.DataFrame, theirs: pd.DataFrame
) -> dict[str, dict[str, object]]:
    """Return the median errors of both on rows that AIConfigurator answers, and how many not.

    Args:
        data: the deployments.
        ours: ``tpot_ms`` and ``ttft_ms``, by a correction that did not see them.
        theirs: its answers about the same rows, nothing where it refused.
    """
    networks = data.models
    called = pd.Series([d.model.name for d in data.deployments])
    names = {called[networks == n].mode().iloc[0]: n for n in sorted(set(networks))}
    some = {
        "all": np.ones(len(networks), dtype=bool),
        "one pool": np.array([d.pools is None for d in data.deployments]),
        **{name: networks == network for name, network in names.items()},
    }
    answered = theirs["tpot_ms"].notna().to_numpy()
    found: dict[str, dict[str, object]] = {}
    for label, rows in some.items():
        both = rows & answered
        found[label] = {"rows": int(both.sum()), "refused": int((rows & ~answered).sum())}
        for target, name in NAMES.items() if both.any() else ():
            measured = data.measured[target][both]
            found[label][name] = {
                "ours": _median(ours[target][both] / measured),
                "theirs": _median(theirs[target][both] / measured),
            }
    return found


def _median(ratio: "pd.Series[float]") -> float:
    return float((ratio - 1.0).abs().median())


def beside_lines(found: dict[str, dict]) -> Iterable[str]:
    """Return the table as text."""
    yield "| rows | answered by both | refused by it | TPOT | TTFT | ahead |"
    yield "|---|---|---|---|---|---|"
    for label, line in found.items():
        errors = [line[name] for name in NAMES.values() if name in line]
        ahead = [n.upper() for n in NAMES.values() if n in line and _ahead(line[n])]
        cells = [f"{100 * e['ours']:.1f} / {100 * e['theirs']:.1f}" for e in errors] or ["", ""]
        verdict = (" and ".join(ahead) or "neither") if errors else ""
        yield f"| {label} | {line['rows']} | {line['refused']} | {' | '.join(cells)} | {verdict} |"


def _ahead(error: dict[str, float]) -> bool:
    return error["ours"] < error["theirs"]
