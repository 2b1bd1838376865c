"""How well the watts of operators and deployments are predicted: prints tables.

Run: ``python benchmarks/plan_power.py [--operators DIR] [--watts DIR] [--write]``. Powers are those
of AIConfigurator's tables (Apache-2.0): the ones in ``--operators DIR`` (default: the package
aiconfigurator-core), and ``power_h200_*.parquet`` in ``--watts DIR`` (default
``$FORETUNE_SHARED_DATA/llm``), which take their times from the newest tables, having none of their
own. ``--write`` rewrites the shipped forms, ``plan/cost/power.csv``.

Rows that are known not to be of their operator are left out of the fit, and scored apart:

- GEMMs with block scales: their times in the tables are those of launches one by one.
- Decode attention that uses less than half of the bandwidth: its recorded power does not depend on
  the bandwidth used (see the table of medians), so it belongs to earlier launches.

The remaining rows are not clean either: GEMMs of certain numbers of rows (2, 17, 64, 128, …) were
recorded at half the power of their neighbors, as if their GPU had waited between launches. The
table of alike operators shows how much records differ that should have the same power.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from foretune.datasets.importers.aiconfigurator import KERNELS, operation_of, read
from foretune.datasets.importers.files import Request
from foretune.features.roofline import row_limits_ms
from foretune.plan import Formats, Layout, ModelDescription, describe_model, find_system
from foretune.plan.cost.kinds import KINDS, family_of
from foretune.plan.cost.operator import Part
from foretune.plan.cost.power import (
    METERED_SYSTEMS,
    OperatorPower,
    PowerModel,
    PowerModels,
    shipped_models,
)
from foretune.plan.cost.steps import Step, StepTimerFactory
from foretune.plan.cost.tables import OperatorTables, default_folders
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.serve.deployments.power import UNMODELED_ACTIVE_SHARE, deployment_power
from foretune.support.operator_package import installed_tables

FORMS = Path(__file__).resolve().parents[1] / "plan" / "cost" / "power.csv"
LEAST_BANDWIDTH = 0.5
OUTLIER_SCALE = 0.05
"""Log error beyond which a measurement is down-weighted; several percent of the recorded powers
belong to other operators."""
LOWER_BOUNDS, UPPER_BOUNDS = (0.0, 0.2, 0.0, 0.2), (6.0, 3.0, 6.0, 3.0)
INITIAL_VALUES = ((0.8, 0.8, 0.6, 0.8), (0.3, 0.5, 0.3, 0.5), (1.0, 0.5, 0.1, 1.0))
SIZES = {
    "gemm": ["problem.M"],
    "attention_prefill": ["problem.batch", "problem.seq_len"],
    "attention_decode": ["problem.batch", "problem.kv_len"],
    "moe": ["problem.tokens"],
}
"""Kernel -> columns that say how much of a problem there is; its other sizes are the model's."""
MOST_FITTED = 20_000
ALIKE_USE = 0.02
"""Difference in the logarithm of what is used below which operators use the same."""
EDGES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 2.0)


USED = ["computing", "memory"]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=Path, default=installed_tables())
    shared = Path(os.environ.get("FORETUNE_SHARED_DATA", "")) / "llm"
    parser.add_argument("--watts", type=Path, default=shared)
    parser.add_argument("--write", action="store_true", help="rewrite the shipped forms")
    arguments = parser.parse_args()
    powers = measured(arguments.operators, arguments.watts)
    sound = {kernel: rows[rows["sound"]] for kernel, rows in powers.items()}
    fitted = {kernel: _fitted(rows) for kernel, rows in sound.items()}
    _print_awake(pd.concat(powers.values()))
    _print_forms(fitted)
    print("\nMedian / mean error of power, %; rows that are known to be of their operator")
    for kernel, rows in sound.items():
        _print_scores(kernel, rows)
    print("\nThe same, all rows that were recorded")
    for kernel, rows in powers.items():
        if not rows["sound"].all():
            _print_scores(kernel, rows)
    _print_alike(sound)
    _print_recorded(powers)
    _print_published()
    if arguments.write:
        comments = [x for x in FORMS.read_text(encoding="utf-8").splitlines() if x[:1] == "#"]
        FORMS.write_text("\n".join([*comments, *_lines(fitted)]) + "\n", encoding="utf-8")


def measured(folder: Path | None, watts: Path) -> dict[str, pd.DataFrame]:
    """Return run tables of operators whose power was measured, by kernel.

    Columns beside those of a run table: ``computing`` and ``memory``, shares of the peak rates in
    use; ``share`` of the board's limit that was drawn; ``awake``, what an awake GPU of the system
    draws of it; ``system``, its short name; ``sound``, whether the power is known to be of the
    operator.
    """
    files = [*(folder.rglob("*_perf.parquet") if folder else ()), *watts.glob("power_*.parquet")]
    tables = OperatorTables(folder) if folder else None
    by_kernel: dict[str, list[pd.DataFrame]] = {}
    for path in files:
        kernel = KERNELS.get(operation_of(path) or "", "")
        if kernel in SIZES and "power_w" in (rows := read(path, Request())):
            by_kernel.setdefault(kernel, []).append(_powers(kernel, rows, tables))
    if not by_kernel:
        raise SystemExit("no table with powers: install aiconfigurator-core or give --watts")
    return {k: pd.concat(parts, ignore_index=True) for k, parts in sorted(by_kernel.items())}


def _powers(kernel: str, rows: pd.DataFrame, tables: OperatorTables | None) -> pd.DataFrame:
    system = find_system(str(rows["device"].iloc[0]))
    device = system.device
    plain = rows.astype({c: object for c in rows if isinstance(rows[c].dtype, pd.CategoricalDtype)})
    if plain["time_ms"].isna().all():
        clock = OperatorTimer(device, tables, system.name, str(plain["config.backend"].iloc[0]))
        plain["time_ms"] = clock.times(plain).ms
    specs = {f"device.{name}": value for name, value in device.specs.items()}
    limits = row_limits_ms(family_of(kernel), plain.assign(**specs))
    used = np.minimum(limits / plain["time_ms"].to_numpy(dtype=float)[:, None], 1.0)
    sound: object = True
    if kernel == "gemm":
        sound = plain["config.format"] == "bf16"
    if kernel == "attention_decode":
        sound = used[:, 1] >= LEAST_BANDWIDTH
    return plain.assign(
        computing=used[:, 0],
        memory=used[:, 1],
        share=(plain["power_w"] / plain["device.power_limit_w"]).astype(float),
        awake=METERED_SYSTEMS[system.name][1],
        system=system.name,
        sound=sound,
    )


def fit_form(used: np.ndarray, awake: np.ndarray | float, measured: np.ndarray) -> PowerModel:
    """Return the robust fit to ``measured`` shares of the limit."""
    found = [
        least_squares(
            lambda values: np.log(PowerModel(*values).share(used, awake) / measured),
            start,
            bounds=(LOWER_BOUNDS, UPPER_BOUNDS),
            loss="cauchy",
            f_scale=OUTLIER_SCALE,
        )
        for start in INITIAL_VALUES
    ]
    return PowerModel(*min(found, key=lambda fit: fit.cost).x.tolist())


def _lines(models: PowerModels) -> list[str]:
    """Return power models as CSV lines that `shipped_models` reads."""
    rows = [
        [kernel, system, *(f"{value:.3f}" for value in astuple(form))]
        for kernel, several in models.items()
        for system, form in several.items()
    ]
    names = ["kernel", "system", *(field.name for field in fields(PowerModel))]
    return [",".join(row) for row in [names, *rows]]


def _fitted(rows: pd.DataFrame) -> dict[str, PowerModel]:
    """Return the form of each system's rows."""
    forms = {}
    for system, own in rows.groupby("system"):
        few = np.random.default_rng(0).choice(len(own), min(MOST_FITTED, len(own)), replace=False)
        some = own.iloc[few]
        awake, share = (some[name].to_numpy() for name in ("awake", "share"))
        forms[str(system)] = fit_form(some[USED].to_numpy(), awake, share)
    return forms


def _by_form(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    forms = _fitted(train)
    shares = pd.Series(np.nan, index=test.index)
    for system, own in test.groupby("system"):
        nearest = [forms[system]] if system in forms else list(forms.values())
        each = [form.share(own[USED].to_numpy(), own["awake"].to_numpy()) for form in nearest]
        shares[own.index] = np.mean(each, axis=0)
    return shares.to_numpy()


def _linear(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    terms, wanted = (rows[USED].assign(awake=1.0).to_numpy() for rows in (train, test))
    relative = terms / train["share"].to_numpy()[:, None]
    values = np.linalg.lstsq(relative, np.ones(len(relative)), rcond=None)[0]
    return np.clip(wanted @ values, 0.05, 1.0)


def _neighbors(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    from sklearn.neighbors import KNeighborsRegressor

    model = KNeighborsRegressor(32, weights="distance")
    model.fit(_of_use(train), np.log(train["share"]))
    return np.exp(model.predict(_of_use(test)))


def _boosted(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    from xgboost import XGBRegressor

    model = XGBRegressor(n_estimators=200, max_depth=6, learning_rate=0.1, subsample=0.8, n_jobs=1)
    return np.exp(model.fit(_of_sizes(train), np.log(train["share"])).predict(_of_sizes(test)))


def _of_use(rows: pd.DataFrame) -> np.ndarray:
    return np.log(np.maximum(rows[USED].to_numpy(), 1e-5))


def _of_sizes(rows: pd.DataFrame) -> np.ndarray:
    wide = rows["config.format"].eq("bf16").to_numpy(dtype=float)
    return np.column_stack(
        [KINDS[str(rows["kernel"].iloc[0])].coordinates(rows), wide, _of_use(rows)]
    )


MODELS: dict[str, Callable[[pd.DataFrame, pd.DataFrame], np.ndarray]] = {
    "limit": lambda train, test: np.ones(len(test)),
    "linear": _linear,
    "form": _by_form,
    "k-nearest": _neighbors,
    "boosted": _boosted,
}
"""What learns from the first rows, and predicts shares of the second."""


def _splits(kernel: str, rows: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each split, and the rows that it holds out."""
    rng = np.random.default_rng(0)
    axes = [c for c in KINDS[kernel].axes if c in rows]
    for name, columns in (
        ("problems", [c for c in axes if c not in SIZES[kernel]]),
        ("sizes", SIZES[kernel]),
    ):
        group = rows.groupby(columns, dropna=False).ngroup().to_numpy()
        count = group.max() + 1
        yield name, np.isin(group, rng.permutation(count)[: max(count // 5, 1)])
    if rows["system"].nunique() > 1:
        yield from ((name, rows["system"] == name) for name in sorted(rows["system"].unique()))


def _print_scores(kernel: str, rows: pd.DataFrame) -> None:
    print(f"{kernel} held out".ljust(28), "rows".rjust(7), *(f"{name:>11}" for name in MODELS))
    for name, out in _splits(kernel, rows):
        train, test = rows[~out], rows[out]
        cells = []
        for model in MODELS.values():
            error = 100 * np.abs(model(train, test) / test["share"] - 1)
            cells.append(f"{np.median(error):5.1f} /{error.mean():4.0f}".rjust(11))
        print(f"  {name}".ljust(28), f"{len(test):7d}", *cells)


def _print_awake(rows: pd.DataFrame) -> None:
    print("Lowest hundredth of all powers, share of the limit (shipped)")
    lowest = rows.groupby(["system", "kernel"])["share"].quantile(0.01).groupby("system").min()
    for system, share in lowest.items():
        print(f"  {system:12} {share:.3f} ({METERED_SYSTEMS[system][1]})")


def _print_forms(fitted: dict[str, dict[str, PowerModel]]) -> None:
    print("\nForms (shipped): awake + a·computing^p + b·memory^q, as a p b q")
    for kernel, forms in fitted.items():
        for system, form in forms.items():
            both = [form, shipped_models().get(kernel, {}).get(system)]
            told = [" ".join(f"{v:5.2f}" for v in astuple(f)) for f in both if f]
            print(f"  {kernel:20} {system:12} {told[0]}   ({' '.join(told[1:])})")


def _print_alike(powers: dict[str, pd.DataFrame]) -> None:
    print("\nMedian / mean difference of records next to each other in size that use the same, %")
    for kernel, rows in powers.items():
        size, kind = SIZES[kernel][-1], KINDS[kernel]
        others = ["config.format", "config.kv_format", *kind.exact, *kind.axes]
        by = ["system", *(c for c in dict.fromkeys(others) if c in rows and c != size)]
        table = rows.assign(**dict(zip(USED, _of_use(rows).T, strict=True)))
        groups = table.sort_values([*by, size]).groupby(by, dropna=False, observed=True)
        step, ratio = groups[USED].diff().abs(), groups["share"].pct_change().abs()
        table = table.loc[step.index]
        bound = step["memory"].where(table["memory"] > table["computing"], step["computing"])
        alike = 100 * ratio[bound < ALIKE_USE]
        print(f"  {kernel:20} {len(alike):6d} pairs {alike.median():5.1f} /{alike.mean():4.0f}")


def _print_recorded(powers: dict[str, pd.DataFrame]) -> None:
    print("\nMedian share of the limit by the larger share of peak rates in use")
    rows = pd.concat(powers.values())
    used = pd.cut(
        rows[USED].max(axis=1), EDGES, right=False, labels=[f"<{edge:.2f}" for edge in EDGES[1:]]
    ).rename("in use")
    found = rows.pivot_table("share", ["kernel", "system"], used, "median", observed=True)
    print(found.to_string(float_format="{:.2f}".format, na_rep=""))


PHI3_MINI = ModelDescription(
    "Phi-3-mini",
    layers=32,
    hidden=3072,
    heads=32,
    kv_heads=32,
    head_dim=96,
    vocab=32064,
    intermediate=8192,
)
PROMPT = 256
"""Tokens of the prompts of published runs, which do not say."""


@dataclass(frozen=True)
class Published:
    """A GPU that serves a model in bf16 with vLLM.

    Attributes:
        model, system: The model and the system.
        running: Requests at a time.
        osl: Generated tokens per request.
        watts: Power of the GPU.
        source: Where it was published.
        mj_per_token: Energy per generated token; None if pauses between steps are not known.
    """

    model: ModelDescription
    system: str
    running: int
    osl: int
    watts: float
    source: str
    mj_per_token: float | None = None

    def predicted(self, clocks: StepTimerFactory) -> tuple[float, float]:
        """Return watts without pauses, and at the published speed."""
        clock = clocks(find_system(self.system), "vllm")
        context = PROMPT + self.osl // 2
        decode = Step(self.model, Layout(), Formats(), Part(self.running, 1, context, "decode"))
        prefill = Step(self.model, Layout(), Formats(), Part(16, PROMPT, 0, "prefill"))
        steps = clock.times([decode, prefill])
        power = OperatorPower(find_system(self.system).device, self.system)
        row = {
            "decode": steps["total"][0],
            "decode_energy_mj": steps["energy_mj"][0],
            "prefill": steps["total"][1] / 16,
            "prefill_energy_mj": steps["energy_mj"][1] / 16,
            "running": self.running,
            "concurrency": self.running,
            "osl": self.osl,
            "speculative": 0.0,
            "tp": 1.0,
            "pp": 1.0,
            "prefill_tp": 1.0,
            "gpus": 1.0,
            "awake_w": power.active_idle_w,
        }
        token_ms = self.running * (self.mj_per_token or np.nan) / self.watts
        found = []
        for each in (1e-6, token_ms):
            latency = pd.DataFrame({"tpot_ms": [each], "ttft_ms": [each]})
            found.append(float(deployment_power(pd.DataFrame([row]), latency)["power_w"][0]))
        return found[0], found[1]


def _published() -> list[Published]:
    alice = "api.serialalice.pt/alice-benchmark, June 2026"
    green = "ML.ENERGY v3.0 in huggingface.co/datasets/leadgreen/green-token-index"
    llama = describe_model("meta-llama/Llama-3.1-8B")
    qwen, sparse = describe_model("Qwen/Qwen3-8B"), describe_model("Qwen/Qwen3-30B-A3B")
    return [
        Published(llama, "h100_sxm", 511, 397, 688.0, green, 70.2),
        Published(llama, "b200_sxm", 2043, 396, 691.0, green, 46.7),
        Published(qwen, "b200_sxm", 1427, 649, 801.0, green, 53.1),
        Published(sparse, "b200_sxm", 1023, 928, 601.0, green, 56.4),
        Published(PHI3_MINI, "h200_sxm", 128, PROMPT, 516.9, alice),
        Published(PHI3_MINI, "b200_sxm", 128, PROMPT, 606.0, alice),
    ]


def _print_published() -> None:
    folders = default_folders()
    clocks = StepTimerFactory(OperatorTables(folders[0]) if folders else None)
    print("\nWatts of GPUs that serve at a published speed: if they worked all the time, if they")
    print("waited between operators, as is assumed, and as published")
    for one in _published():
        busy, paused = one.predicted(clocks)
        waiting = busy - (busy - paused) / (1.0 - UNMODELED_ACTIVE_SHARE)
        name = f"{one.model.name.split('/')[-1]} {one.system} x {one.running}"
        watts = " ".join(f"{w:5.0f}" for w in (busy, waiting, paused, one.watts))
        print(f"  {name:32} {watts}  {one.source}")


if __name__ == "__main__":
    main()
