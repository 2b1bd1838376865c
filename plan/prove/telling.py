"""A proof in words, and as rows of promise beside proof."""

from collections.abc import Mapping
from math import isfinite

from foretune.plan.prove.figures import Figure
from foretune.plan.prove.load import Load
from foretune.plan.prove.prediction import Promise, StepFactors
from foretune.plan.prove.prover import Proof, broken_promises
from foretune.plan.prove.setting import SettingSpace
from foretune.plan.prove.trial import PlainFigures, Trial
from foretune.plan.serve.explanation import format_number
from foretune.space import Configuration
from foretune.tune.report.page import duration, number
from foretune.values import counted

FIGURES = {
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "tokens_per_s": "tokens/s",
}
"""Figure -> heading of its column."""
WORDS = {
    "ttft_ms": "the time to the first token",
    "tpot_ms": "the time per token",
    "tokens_per_s": "the throughput",
}
STOP_REASONS = {
    "budget": "the starts are spent",
    "seconds": "the seconds are spent",
    "regret": "nothing better is expected",
    "exhausted": "all settings were tried",
}
COLUMNS = ("start", "setting", "load", "", *FIGURES.values(), "GiB")
"""Headings of `trial_rows`."""
BRIEF_COLUMNS = ("start", "setting", "load", *FIGURES.values(), "GiB")
"""Headings of `brief_rows`."""
PROMISED = "promised"
PROVEN = "proven"
MAX_REASON_CHARACTERS = 60
MEMORY_NAMED_GIB = 0.1
"""Less unplanned memory is not told."""
PARTS_NAMED = 0.15
"""A factor of a part of a step is named if it differs from 1 by more than this share."""


def sentences(proof: Proof, settings: SettingSpace) -> list[str]:
    """Return what a proof found, the verdict first."""
    spent = f"{counted(len(proof.trials), 'start')} in {duration(proof.seconds)}"
    return [
        _verdict(proof),
        *_best_lines(proof, settings),
        *_factor_lines(proof.factors, proof.spread),
        *_memory_lines(proof.unplanned_gib),
        *_caveats(proof),
        f"{spent}; the search ended because {STOP_REASONS[proof.search.reason]}",
    ]


def describe_setting(config: Configuration, settings: SettingSpace) -> str:
    """Return how a setting differs from the plan's."""
    planned = settings.planned
    changed = [f"{name}={value}" for name, value in config.items() if planned[name] != value]
    return " ".join(changed) or "as planned"


def trial_rows(proof: Proof, settings: SettingSpace) -> list[list[str]]:
    """Return rows under `COLUMNS`: per trial and load, what was promised and what was proven."""
    rows = []
    for trial in proof.trials:
        name = describe_setting(trial.config, settings)
        loads = list(trial.promises) or list(trial.proofs)
        for load in loads:
            start = [str(trial.number), name, load.name]
            promised = trial.promises.get(load)
            if promised is not None:
                values = [format_number(getattr(promised, figure)) for figure in FIGURES]
                rows.append([*start, PROMISED, *values, format_number(trial.promised_gib)])
                start = ["", "", ""]
            proven = _proven_values(trial, load)
            memory = format_number(trial.memory_gib) if trial.ok else ""
            rows.append([*start, PROVEN, *proven, memory])
    return rows


def brief_rows(proof: Proof, settings: SettingSpace) -> list[list[str]]:
    """Return a row under `BRIEF_COLUMNS` per trial and load: promised → proven."""
    rows = []
    for trial in proof.trials:
        first = [str(trial.number), describe_setting(trial.config, settings)]
        memory = f"{trial.promised_gib:.2f} → {trial.memory_gib:.2f}"
        for load in trial.promises or trial.proofs:
            promised = trial.promises.get(load)
            proven = trial.figures.get(load)
            cells = [_promised_proven(promised, proven, figure) for figure in FIGURES]
            rows.append([*first, load.name, *cells, memory])
            first = ["", ""]
            memory = ""
    return rows


def _promised_proven(promised: Promise | None, proven: PlainFigures | None, figure: str) -> str:
    """Return a promised figure and the proven one; a dash for what is unknown."""
    values = [
        "–" if figures is None else number(getattr(figures, figure))
        for figures in (promised, proven)
    ]
    return " → ".join(values)


def _proven_values(trial: Trial, load: Load) -> list[str]:
    """Return the measured figures with their intervals; the reason if there are none."""
    shown = trial.proofs.get(load)
    if shown is None:
        return [trial.reason[:MAX_REASON_CHARACTERS] or "not measured", "", ""]
    return [_with_interval(getattr(shown, figure)) for figure in FIGURES]


def _with_interval(figure: Figure) -> str:
    """Return a value, with its interval if it was repeated."""
    if not isfinite(figure.low):
        return format_number(figure.value)
    low = format_number(figure.low)
    high = format_number(figure.high)
    return f"{format_number(figure.value)} ({low} … {high})"


def _verdict(proof: Proof) -> str:
    """Return whether the promise is kept, and what of it is not."""
    planned = proof.planned
    if not planned.ok:
        return f"promise broken: the plan's server did not serve: {planned.reason}"

    load = proof.promised_load
    if load not in planned.proofs:
        return f"promise not proven at {load.name}: {planned.reason}"
    if proof.is_kept:
        return f"promise kept at {load.name}"
    texts = []
    for name in broken_promises(planned, load):
        promised = format_number(getattr(planned.promises[load], name))
        proven = format_number(getattr(planned.figures[load], name))
        texts.append(f"{WORDS[name]} is {proven} instead of {promised}")
    limits = _broken_limits(proof, planned, load)
    return f"promise broken at {load.name}: {', '.join([*texts, *limits])}"


def _broken_limits(proof: Proof, trial: Trial, load: Load) -> list[str]:
    """Return the limits that a trial breaks under a load."""
    figures = trial.figures[load]
    limits: Mapping[str, float] = {
        "ttft_ms": proof.requirements.ttft_ms,
        "tpot_ms": proof.requirements.tpot_ms,
    }
    return [
        f"{WORDS[name]} exceeds its limit of {format_number(limit)}"
        for name, limit in limits.items()
        if getattr(figures, name) > limit
    ]


def _best_lines(proof: Proof, settings: SettingSpace) -> list[str]:
    """Return the best setting, how much it gains, and whether that was verified."""
    if proof.best_config is None:
        return ["no setting served: see the logs"]
    name = describe_setting(proof.best_config, settings)
    if proof.best_config == proof.planned.config:
        others = [trial for trial in proof.trials if trial.config != proof.planned.config]
        if not others:
            return ["no other setting was started"]
        return ["no setting is better than the plan's own"]
    if proof.best is None:
        reason = proof.comparison.reason
        return [f"best: {name}, by an earlier proof; not verified: {reason}"]

    lines = [f"best: {name}, {format_number(proof.gain)} × as good as the plan's own"]
    comparison = proof.comparison
    if comparison.reason:
        lines.append(f"not verified: {comparison.reason}")
    else:
        low, high = map(format_number, comparison.interval)
        verdict = "verified" if comparison.is_verified else "not verified"
        lines.append(
            f"{verdict}: {format_number(comparison.ratio)} × ({low} … {high}) in "
            f"{counted(len(comparison.ratios), 'pair')} of starts in turn"
        )
    if not proof.holds_limits:
        lines.append("no setting is within the limits under any of its loads")
    return lines


def _factor_lines(factors: StepFactors, spread: float) -> list[str]:
    """Return how the server's steps differ from the plan's."""
    parts = []
    if abs(factors.decode - 1.0) > PARTS_NAMED:
        parts.append(f"answers take {format_number(factors.decode)} ×")
    if abs(factors.prompt - 1.0) > PARTS_NAMED:
        parts.append(f"prompts take {format_number(factors.prompt)} ×")
    if factors.step_ms > 0:
        parts.append(f"every step takes {format_number(factors.step_ms)} ms more")
    if not parts:
        return []
    told = f"corrected: {', '.join(parts)} than planned"
    return [f"{told}; corrected promises are within {100 * spread:.0f} % (one deviation)"]


def _memory_lines(unplanned_gib: float) -> list[str]:
    """Return what servers took beyond the planned memory, if that is much."""
    if unplanned_gib < MEMORY_NAMED_GIB:
        return []
    taken = f"memory: servers took {format_number(unplanned_gib)} GiB more than planned"
    return [f"{taken}; promises of later starts count it"]


def _caveats(proof: Proof) -> list[str]:
    """Return what may have spoiled the figures."""
    notes = []
    failed = sum(shown.failed for trial in proof.trials for shown in trial.proofs.values())
    if failed:
        notes.append(f"note: {counted(failed, 'request')} failed and do not count")
    if any(shown.short_answers for trial in proof.trials for shown in trial.proofs.values()):
        notes.append("note: the engine ended answers early: it ignores ignore_eos")
    disturbed = [trial.disturbance for trial in proof.trials if trial.disturbance]
    if disturbed:
        notes.append(f"note: figures may be off: {disturbed[-1]}")
    return notes
