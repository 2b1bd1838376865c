"""What each part of a target's model is worth: the whole, and the whole without one part.

    python benchmarks/parts.py DATA --out parts.jsonl [--only spaces,moe] [--task TEXT] [--draw 1]
    python benchmarks/parts.py DATA --out parts.jsonl --table

Every line of ``--out`` is one part left out of one task of ``predictor_tasks.py``, trained on at
most ``--rows`` rows; what is in the file is not run again, so that a run can be interrupted.
``--table`` prints what is in it. Nothing in the package knows of this: parts are left out by
replacing what brings them in. Boosted models that two variants have in common are trained once.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from machine import heading, markdown
from predictor_tasks import GROUPS, Task, thinned

from foretune.collect import local_device
from foretune.features import featureset
from foretune.features.families import moe
from foretune.features.featureset import FeatureSet
from foretune.models import (
    Predictor,
    calibrated_roofline,
    experts,
    holdouts,
    interval,
    neighbors,
    target_model,
)
from foretune.models.experts import Experts, SmoothExpert, Stack
from foretune.models.interval import ConformalInterval
from foretune.models.splits import task_numbers
from foretune.models.target_model import TargetModel
from foretune.models.trees.boosting import BoostingModel
from foretune.models.validation.metrics import score

Change = tuple[Any, str, Any]
"""What is replaced: an owner, the name of its attribute, what stands there instead."""
NEVER = 10**9
WHOLE = "the whole"


def without_opinion(name: str) -> list[Change]:
    """Return what leaves one opinion out."""
    plain = Experts.predict

    def opinions(self: Experts, X: np.ndarray, look: np.ndarray | None) -> np.ndarray:
        said, names = plain(self, X, look), names_of(self, look)
        return np.delete(said, names.index(name), axis=1) if name in names[1:] else said

    return [(Experts, "predict", opinions)]


def names_of(model: Experts, look: np.ndarray | None) -> list[str]:
    """Return the names of the columns of `Experts.predict`."""
    if look is None:
        names = ["tree", "smooth"] if model.smooth is not None else ["tree"]
    else:
        names = ["tree", "corrected", "interpolation"]
    return [*names, "unit"] if model.has_unit else names


def trees_alone() -> list[Change]:
    """Return what leaves all opinions out but the trees'."""
    plain = Experts.predict
    return [(Experts, "predict", lambda self, X, look: plain(self, X, look)[:, :1])]


def with_equal_weights() -> list[Change]:
    """Return what gives all opinions the same weight."""
    return [(Stack, "combine", lambda self, Z, said, new: said.mean(axis=1))]


def with_fixed_weights() -> list[Change]:
    """Return what gives an opinion the same weight everywhere."""
    return [(experts, "MIN_ERROR_ROWS", NEVER)]


def without_features(*named: Callable[[str], bool]) -> list[Change]:
    """Return what leaves out features with such a name."""
    plain = FeatureSet._table

    def table(self: FeatureSet, rows: Any) -> dict[str, Any]:
        found = plain(self, rows)
        return {n: v for n, v in found.items() if not any(test(n) for test in named)}

    return [(FeatureSet, "_table", table)]


def without_company() -> list[Change]:
    """Return what gives all rows the same factor of the interval."""
    fit, half_width = ConformalInterval.fit.__func__, ConformalInterval.half_width  # type: ignore[attr-defined]

    def fit_as_one(
        cls: type[ConformalInterval],
        X: np.ndarray,
        errors: np.ndarray,
        holdouts: np.ndarray,
        outside: np.ndarray,
        kind: np.ndarray,
        *more: Any,
    ) -> ConformalInterval:
        fitted: ConformalInterval
        fitted = fit(cls, X, errors, holdouts, outside, np.zeros_like(kind), *more)
        return fitted

    def as_one(
        self: ConformalInterval,
        X: np.ndarray,
        outside: np.ndarray,
        beyond: np.ndarray,
        kind: np.ndarray,
    ) -> np.ndarray:
        return half_width(self, X, outside, beyond, np.zeros_like(kind))

    return [
        (ConformalInterval, "fit", classmethod(fit_as_one)),
        (ConformalInterval, "half_width", as_one),
    ]


def without_outside() -> list[Change]:
    """Return what keeps the spread from knowing how far outside a row lies."""
    return [(interval, "_with_octaves", lambda X, outside: np.asarray(X, dtype=np.float32))]


def without_reach() -> list[Change]:
    """Return what widens intervals with every octave outside, whatever was held out."""
    plain = TargetModel._octaves_outside

    def outside(self: TargetModel, *arguments: Any) -> np.ndarray:
        found = plain(self, *arguments)
        self.reach = {}
        return found

    return [(TargetModel, "_octaves_outside", outside)]


def without_widening() -> list[Change]:
    """Return what keeps intervals as wide beyond all that was held out."""
    plain = ConformalInterval.half_width

    def half_width(
        self: ConformalInterval,
        X: np.ndarray,
        outside: np.ndarray,
        beyond: np.ndarray,
        company: np.ndarray,
    ) -> np.ndarray:
        return plain(self, X, outside, np.zeros_like(beyond), company)

    return [(ConformalInterval, "half_width", half_width)]


def without_repeats() -> list[Change]:
    """Return what tests intervals on the newest measurement of a run alone."""
    plain = TargetModel.fit

    def fit(self: TargetModel, features: Any, rows: Any, X: Any, repeats: Any = None) -> Any:
        return plain(self, features, rows, X)

    return [(TargetModel, "fit", fit)]


def singles_and_all(axes: Any) -> list[tuple[int, ...]]:
    """Return the plain kinds of novelty: a size, all sizes of the problem, everything."""
    every = tuple(range(len(axes)))
    problem = tuple(i for i in every if axes[i].column.startswith("problem."))
    return list(dict.fromkeys([*((i,) for i in every), problem or every, every]))


def starts_with(start: str) -> Callable[[str], bool]:
    """Return whether a name begins so."""
    return lambda name: name.startswith(start)


def is_derived() -> list[Change]:
    """Return what leaves out what families derive from sizes (their cost stays)."""
    plain = FeatureSet._physics

    def physics(self: FeatureSet, family: Any, rows: Any) -> dict[str, Any]:
        found = plain(self, family, rows)
        return {n: v for n, v in found.items() if n.startswith("log2_roofline") or n in COST}

    return [(FeatureSet, "_physics", physics)]


def without_column(name: str) -> list[Change]:
    """Return what leaves a column out of the rows to learn from."""
    plain = Predictor.fit

    def fit(self: Predictor, runs: Any) -> Predictor:
        return plain(self, runs.drop(columns=name, errors="ignore"))

    return [(Predictor, "fit", fit)]


COST = ("log2_flops", "log2_bytes", "log2_intensity", "bytes_of_cache")

PARTS: Mapping[str, Callable[[], list[Change]]] = {
    WHOLE: list,
    "all but the trees": trees_alone,
    "opinion: corrected": lambda: without_opinion("corrected"),
    "opinion: interpolation": lambda: without_opinion("interpolation"),
    "opinion: the unit": lambda: without_opinion("unit"),
    "opinion: smooth": lambda: without_opinion("smooth"),
    "stack: weights (else equal)": with_equal_weights,
    "stack: weights by features (else one each)": with_fixed_weights,
    "interval: modelled errors (else one factor)": lambda: [(interval, "MIN_ROWS", NEVER)],
    "interval: factors by company": without_company,
    "interval: octaves outside as an input": without_outside,
    "interval: reach of what was held out": without_reach,
    "interval: wider beyond it": without_widening,
    "interval: repeats": without_repeats,
    "hold-outs: six (else three)": lambda: [(target_model, "MORE_HOLDOUTS", target_model.HOLDOUTS)],
    "hold-outs: whole devices": lambda: [(target_model, "_devices_held_out", lambda rows, rng: [])],
    "hold-outs: the largest sizes": lambda: [
        (
            holdouts,
            "_rows_with_largest_values",
            lambda places, rng: np.zeros(len(places.shared), dtype=bool),
        )
    ],
    "hold-outs: all sizes but one": lambda: [(holdouts, "holdout_kinds", singles_and_all)],
    "corrected: views from one side": lambda: [(experts, "ONE_SIDED_SHARE", 0.0)],
    "neighbors: how well each axis does": lambda: [
        (neighbors.NeighborIndex, "measure_axes", lambda self, places, values: None)
    ],
    "neighbors: repeated sizes": lambda: [(neighbors, "repeated_sizes", lambda runs: [])],
    "neighbors: devices": lambda: [(neighbors, "_device_axis", lambda runs: None)],
    "unit: calibrated (else 4 µs and 80 %)": lambda: [
        (calibrated_roofline, "_fit", lambda law, limits, log_value, start, problems: start)
    ],
    "unit: apart per format": lambda: [(calibrated_roofline, "MIN_ROWS", NEVER)],
    "features: alignment": lambda: without_features(starts_with("alignment.")),
    "features: caches": lambda: without_features(lambda name: name.endswith("_of_cache")),
    "features: geometry": lambda: [(featureset, "launch_geometry", lambda *columns: {})],
    "features: derived by the family": is_derived,
    "features: load of the busiest rank (else the mean)": lambda: [
        (moe, "routing_exponent", lambda distribution: 0.0)
    ],
    "columns: ranks of tensor parallelism": lambda: without_column("config.tp"),
}
ONLY_OF: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("devices", "installed"),
    (
        WHOLE,
        "all but",
        "opinion",
        "stack",
        "interval",
        "hold-outs: whole",
        "neighbors: dev",
        "features: c",
    ),
) | {
    "spaces": (
        WHOLE,
        "all but",
        "opinion: smooth",
        "stack",
        "interval: modelled",
        "interval: octaves",
        "hold-outs: six",
        "features: a",
        "features: g",
        "features: d",
    )
}
"""Group -> how the parts begin that are left out of its tasks: others are not in them, or slow."""


class Memory:
    """Boosted models and what they said, by what they learned from and were asked."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def of(self, make: Callable[[], Any], *key: bytes | np.ndarray) -> tuple[Any, bytes]:
        """Return what ``make`` returned for the same key before, or returns now."""
        digest = hashlib.blake2b(digest_size=16)
        for part in key:
            digest.update(part.tobytes() if isinstance(part, np.ndarray) else part)
        name = digest.digest()
        if name not in self._known:
            self._known[name] = make()
        return self._known[name], name

    def changes(self) -> list[Change]:
        """Return what lets boosted models go through this memory."""
        plain_fit, plain_predict = BoostingModel._fit, BoostingModel._predict
        plain_tuned = SmoothExpert.fit_hyperparameters.__func__  # type: ignore[attr-defined]

        def fit(model: Any, X: np.ndarray, y: np.ndarray) -> None:
            def trained() -> Any:
                plain_fit(model, X, y)
                return model.booster_

            card = json.dumps(model.get_params(), sort_keys=True).encode()
            booster, model.name_ = self.of(trained, card, X, y)
            model._set_booster(booster)

        def predict(model: Any, X: np.ndarray) -> np.ndarray:
            said: np.ndarray
            said, _ = self.of(lambda: plain_predict(model, X), b"said", model.name_, X)
            return said

        def tuned(kind: Any, columns: Any, X: np.ndarray, y: np.ndarray, rng: Any) -> SmoothExpert:
            state = json.dumps(rng.bit_generator.state).encode()
            found: tuple[SmoothExpert, Any]
            found, _ = self.of(
                lambda: (plain_tuned(kind, columns, X, y, rng), rng.bit_generator.state),
                json.dumps(list(columns)).encode(),
                state,
                X,
                y,
            )
            rng.bit_generator.state = found[1]
            return found[0]

        return [
            (BoostingModel, "_fit", fit),
            (BoostingModel, "_predict", predict),
            (SmoothExpert, "fit_hyperparameters", classmethod(tuned)),
        ]


@contextmanager
def changed(changes: list[Change]) -> Iterator[None]:
    """Let other things stand where the changes say."""
    with ExitStack() as stack:
        for owner, name, instead in changes:
            stack.enter_context(patch.object(owner, name, instead))
        yield


def judged(task: Task) -> dict[str, float]:
    """Return the scores of a predictor of the task's rows."""
    runs = task.runs.reset_index(drop=True)
    train, test = runs[~task.test].reset_index(drop=True), runs[task.test].reset_index(drop=True)
    test = test[(test["status"] == "ok") & test[task.target].notna()].reset_index(drop=True)
    predictor = Predictor(targets=(task.target,)).fit(train)
    said = predictor.predict(test)
    value, truth = said[task.target].to_numpy(), test[task.target].to_numpy()
    ends = said[f"{task.target}_low"].to_numpy(), said[f"{task.target}_high"].to_numpy()
    found = score(truth, value, task_numbers(test), ends)
    return {name: found[name] for name in ("mape", "median_ape", "coverage90", "width90")}


def run(task: Task, group: str, draw: int, options: argparse.Namespace) -> None:
    """Append a line per part that the file does not have."""
    there = {(line["task"], line["draw"], line["part"]) for line in lines_of(options.out)}
    texts = options.part.split(",")
    wanted = [p for p in PARTS if p == WHOLE or any(text in p for text in texts)]
    if group in ONLY_OF:
        wanted = [p for p in wanted if p.startswith(ONLY_OF[group])]
    wanted = [p for p in wanted if (task.name, draw, p) not in there]
    if not wanted:
        return
    memory = Memory().changes()
    for part in wanted:
        started = time.perf_counter()
        with changed([*memory, *PARTS[part]()]):
            found = judged(task)
        line = {"task": task.name, "group": group, "draw": draw, "part": part, **found}
        line["seconds"] = round(time.perf_counter() - started, 1)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), file=sys.stderr, flush=True)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return what is in the file; nothing where there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table(lines: list[dict[str, Any]]) -> str:
    """Return the worth of every part as Markdown.

    A part counts on the tasks where leaving it out changes anything. Its error is the geometric
    mean, over these, of the error without it over the whole's; the tasks named are those where it
    gains, and loses, the most.
    """
    found = {(line["task"], line["draw"], line["part"]): line for line in lines}
    rows = []
    for part in PARTS:
        pairs = [
            (f"{task} ({draw})", line, found[task, draw, WHOLE])
            for (task, draw, name), line in found.items()
            if name == part != WHOLE and (task, draw, WHOLE) in found
        ]
        pairs = [(n, a, b) for n, a, b in pairs if any(a[k] != b[k] for k in ("mape", "width90"))]
        if not pairs:
            continue
        ratios = np.array([without["mape"] / whole["mape"] for _, without, whole in pairs])
        off = np.array([[abs(100 * s["coverage90"] - 90) for s in p[1:]] for p in pairs])
        names = [name for name, _, _ in pairs]
        most, least, worst = ratios.argmax(), ratios.argmin(), (off[:, 0] - off[:, 1]).argmax()
        widths = [without["width90"] / whole["width90"] for _, without, whole in pairs]
        rows.append(
            [
                part,
                f"{len(pairs)}",
                f"{100 * (np.exp(np.log(ratios).mean()) - 1):+.1f} %",
                f"{names[most]}: {100 * (ratios[most] - 1):+.1f} %",
                f"{names[least]}: {100 * (ratios[least] - 1):+.1f} %",
                f"{off[:, 1].mean():.1f} → {off[:, 0].mean():.1f}",
                f"{names[worst]}: {off[worst, 1]:.0f} → {off[worst, 0]:.0f}",
                f"{100 * (np.exp(np.log(widths).mean()) - 1):+.0f} %",
            ]
        )
    columns = [
        "without",
        "tasks",
        "error",
        "gains most on",
        "loses most on",
        "coverage off 90 by, points",
        "worst",
        "intervals",
    ]
    return markdown(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="holds llm/ and spaces/")
    parser.add_argument("--out", type=Path, default=Path("parts.jsonl"))
    parser.add_argument("--only", default="", help="groups of tasks, separated by commas")
    parser.add_argument("--task", default="", help="tasks with this text in their name")
    parser.add_argument("--part", default="", help="parts with one of these texts, by commas")
    parser.add_argument("--draw", type=int, default=0, help="which values are held out")
    parser.add_argument("--rows", type=int, default=20_000, help="most rows to learn from")
    parser.add_argument("--table", action="store_true", help="print what is there")
    options = parser.parse_args()
    if options.table:
        print(heading("What the parts of a target's model are worth", local_device()))
        print(table(lines_of(options.out)))
        return
    wanted = set(filter(None, options.only.split(","))) or set(GROUPS)
    for group, tasks in GROUPS.items():
        if group in wanted:
            for task in tasks(options.data, options.draw):
                if options.task in task.name:
                    run(thinned(task, options.rows), group, options.draw, options)


if __name__ == "__main__":
    main()
