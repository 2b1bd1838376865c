"""How far off predictors are on what they never saw, beside baselines: prints a table.

Run: ``python benchmarks/predictors.py DATA [--only gemm,moe]`` where DATA holds ``llm/`` and
``spaces/`` (tables of other tools' measurements, see their manifests for source and licence). Every
line trains on rows of DATA and tests on rows that were held out as the line says.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading
from sklearn.ensemble import RandomForestRegressor

from foretune.collect import local_device
from foretune.datasets import import_runs, read_runs
from foretune.models import Predictor
from foretune.models.baselines import BASELINES
from foretune.models.metrics import score
from foretune.models.splits import groups_of

H100, RTX, B60 = (
    "NVIDIA H100 80GB HBM3",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "Intel Arc Pro B60",
)
SHARE = 0.2
OTHERS = {
    "gdn": "tokens",
    "context_mla": "seq_len",
    "generation_mla": "kv_len",
    "mla_bmm": "tokens",
    "encoder_attention": "seq_len",
    "scale_matrix": "M",
    "wideep_deepep_normal": "tokens",
}
RANDOM = (
    ("gemm", "GEMM, H100,", "time_ms"),
    ("context_attention", "attention prefill, H100,", "time_ms"),
    ("generation_attention", "attention decode, H100,", "time_ms"),
    ("power_h200_gemm", "power, GEMM, H200,", "power_w"),
)
MODEL = ["problem.hidden", "problem.intermediate", "problem.top_k", "problem.experts"]


@dataclass(frozen=True)
class Task:
    """One line of the table: ``runs`` with the rows in ``test`` held out."""

    name: str
    runs: pd.DataFrame
    test: np.ndarray
    target: str = "time_ms"
    few: Mapping[int, int] = field(default_factory=dict)
    """How many runs of a new device to calibrate with -> in how many draws."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="", help="groups, separated by commas")
    parser.add_argument("--model", default="xgboost")
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.only.split(","))) or set(GROUPS)
    print(heading("Predictors on what they never saw", local_device("cpu")))
    print(f"model: {arguments.model}; figures in %: mean / median / 95th percentile of |error|")
    print("| held out | train / test rows | Foretune | 90 % interval holds; width | "
          "calibrated roofline | interpolation | nearest | 6-deep forest | fit, s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for group, tasks in GROUPS.items():
        if group in wanted:
            for task in tasks(arguments.data):
                run_task(task, arguments.model)


def run_task(task: Task, model: str) -> None:
    """Train, test, print one line; more for few-shot transfer and for choices."""
    runs = task.runs.reset_index(drop=True)
    train, test = runs[~task.test].reset_index(drop=True), runs[task.test].reset_index(drop=True)
    ok = (train["status"] == "ok") & train[task.target].notna()
    known = train[ok].reset_index(drop=True)
    test = test[(test["status"] == "ok") & test[task.target].notna()].reset_index(drop=True)
    started = time.perf_counter()
    predictor = Predictor(model, (task.target,)).fit(train)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    truth, groups = test[task.target].to_numpy(), groups_of(test)
    family = predictor.features_.family
    cells = []
    for name in ("calibrated roofline", "grid interpolation", "nearest neighbour"):
        value = BASELINES[name](task.target, family).fit(known).predict(test)  # type: ignore[arg-type]
        cells.append(errors(score(truth, value, groups)))
    cells.append(errors(score(truth, shallow_forest(predictor, known, test, task.target), groups)))
    scores = score_of(predictor, test, task.target)
    line(task.name, len(known), len(test), scores, cells, seconds)
    for n, draws in task.few.items():
        for how, draw in (("chosen", choose), ("at random", draw_at_random)):
            several = [
                few_shot(predictor, test, draw(predictor, test, n, seed), task.target, seed)
                for seed in range(draws)
            ]
            mean = {key: float(np.mean([s[key] for s in several])) for key in several[0]}
            name = f"… with {n} runs there, {how} ({draws} draws)"
            line(name, len(known), len(test), mean, ["", "", "", ""], 0.0)
    if task.name.startswith("GEMM (n, k)"):
        choose_format(predictor, test)
    if task.name == "GEMM, H100, random rows":
        gpperf_protocol(predictor, task.runs)


def choose(predictor: Predictor, test: pd.DataFrame, n: int, seed: int) -> np.ndarray:
    """Return the rows of ``test`` that ``foretune choose`` would have measured."""
    columns = [c for c in test if c.startswith(("problem.", "config."))]
    chosen = predictor.choose(n, test, seed=seed)[columns].drop_duplicates()
    marked = test[columns].merge(chosen, how="left", indicator=True)
    return np.flatnonzero((marked["_merge"] == "both") & ~test[columns].duplicated())


def draw_at_random(predictor: Predictor, test: pd.DataFrame, n: int, seed: int) -> np.ndarray:
    """Return ``n`` rows of ``test``."""
    return np.random.default_rng(seed).choice(len(test), n, replace=False)


def few_shot(
    predictor: Predictor, test: pd.DataFrame, chosen: np.ndarray, target: str, seed: int
) -> dict[str, float]:
    """Return the scores on others of ``test`` of a predictor calibrated with the chosen rows."""
    rest = np.setdiff1d(np.arange(len(test)), chosen)
    rest = np.random.default_rng(seed).choice(rest, min(20_000, len(rest)), replace=False)
    return score_of(predictor.calibrate(test.iloc[chosen]), test.iloc[rest], target)


def score_of(predictor: Predictor, test: pd.DataFrame, target: str) -> dict[str, float]:
    """Return the scores of ``predictor`` on ``test``."""
    predicted = predictor.predict(test)
    value = predicted[target].to_numpy()
    widths = np.log(predicted[f"{target}_high"].to_numpy() / value)
    return score(test[target].to_numpy(), value, groups_of(test), widths)


def line(
    name: str, train: int, test: int, s: dict[str, float], cells: list[str], seconds: float
) -> None:
    """Print one line of the table."""
    interval = f"{100 * s['coverage90']:.0f} %; ±{100 * s['width90']:.0f} %"
    regret = ""
    if np.isfinite(s["top5_regret"]) and "space" in name:
        regret = f" (regret of the top 5: {100 * s['top5_regret']:.1f})"
    text = [name, f"{train:,} / {test:,}", errors(s) + regret, interval, *cells, f"{seconds:.0f}"]
    print("| " + " | ".join(text) + " |", flush=True)


def errors(s: dict[str, float]) -> str:
    """Return mean, median and 95th percentile of the absolute percentage error."""
    if not np.isfinite(s["mape"]):
        return "–"
    return f"{100 * s['mape']:.2f} / {100 * s['median_ape']:.2f} / {100 * s['p95_ape']:.1f}"


def shallow_forest(
    predictor: Predictor, train: pd.DataFrame, test: pd.DataFrame, target: str
) -> np.ndarray:
    """Return what GPPerf's model says: 100 trees of depth 6 on plain features and plain targets."""
    few = np.random.default_rng(0).permutation(len(train))[:100_000]
    forest = depth_6_forest()
    forest.fit(plain_features(predictor, train.iloc[few]), train[target].to_numpy()[few])
    return np.asarray(forest.predict(plain_features(predictor, test)))


def gpperf_protocol(predictor: Predictor, runs: pd.DataFrame) -> None:
    """Print what GPPerf's protocol says of its model.

    Features and truth are clipped to their 1st and 99th percentile, then rows are split at random.
    """
    X, truth = plain_features(predictor, runs), runs["time_ms"].to_numpy()
    X = np.clip(X, *np.percentile(X, [1, 99], axis=0))
    truth = np.clip(truth, *np.percentile(truth, [1, 99]))
    out = np.random.default_rng(0).random(len(runs)) < SHARE
    guess = np.asarray(depth_6_forest().fit(X[~out], truth[~out]).predict(X[out]))
    scores = score(truth[out], guess, groups_of(runs[out]))
    print(
        f"| GPPerf's protocol: random rows, all clipped | {(~out).sum():,} / {out.sum():,} | "
        f"| | | | | {errors(scores)}, R² {scores['r2']:.3f} | |",
        flush=True,
    )


def plain_features(predictor: Predictor, rows: pd.DataFrame) -> np.ndarray:
    """Return sizes, configuration, work and intensity of ``rows``; unknown is 0."""
    names = ("problem.", "config.", "log2_flops", "log2_bytes", "log2_intensity")
    table = predictor.features_.transform(rows)
    return np.nan_to_num(table[[name for name in table if name.startswith(names)]].to_numpy())


def depth_6_forest() -> RandomForestRegressor:
    """Return GPPerf's model, unfitted."""
    return RandomForestRegressor(100, max_depth=6, n_jobs=2, random_state=0)


def choose_format(predictor: Predictor, test: pd.DataFrame) -> None:
    """Print how often the fastest format of an unseen shape is chosen, and what a miss costs."""
    table = test[["problem.M", "problem.N", "problem.K"]].assign(
        truth=test["time_ms"], guess=predictor.predict(test)["time_ms"]
    )
    right, regret = [], []
    for _, rows in table.groupby(["problem.M", "problem.N", "problem.K"]):
        if len(rows) == 3:
            chosen = rows.loc[rows["guess"].idxmin(), "truth"]
            right.append(chosen == rows["truth"].min())
            regret.append(chosen / rows["truth"].min() - 1)
    print(
        f"| choosing bf16, fp8 or fp8_block there | {len(right):,} shapes | right "
        f"{100 * np.mean(right):.1f} %, regret {100 * np.mean(regret):.2f} % | | | | | | |",
        flush=True,
    )


def held_out(runs: pd.DataFrame, columns: list[str], seed: int = 0) -> np.ndarray:
    """Return the rows of a fifth of the combinations of ``columns``."""
    number = runs.groupby(columns, observed=True, dropna=False).ngroup().to_numpy()
    rng, distinct = np.random.default_rng(seed), int(number.max()) + 1
    return np.isin(number, rng.choice(distinct, max(1, round(SHARE * distinct)), replace=False))


def operators(data: Path, name: str, **only: str) -> pd.DataFrame:
    """Return a table of LLM operators, rows where ``device`` and ``backend`` are as given."""
    runs = import_runs(data / "llm" / f"{name}.parquet", "aiconfigurator").runs
    if "device" in only:
        runs = runs[runs["device"] == only["device"]]
    if "backend" in only:
        runs = runs[runs["config.backend"] == only["backend"]]
    runs = runs.reset_index(drop=True)
    texts = runs.select_dtypes("category").columns
    return runs.assign(**{c: runs[c].cat.remove_unused_categories() for c in texts})


def gemm(data: Path) -> Iterator[Task]:
    """GEMM on one known device."""
    runs = operators(data, "gemm", device=H100, backend="trtllm")
    yield Task("GEMM (n, k), H100", runs, held_out(runs, ["problem.N", "problem.K"]))
    yield Task("GEMM m, H100", runs, held_out(runs, ["problem.M"]))
    beyond = (runs["problem.N"] >= 16384) | (runs["problem.K"] >= 16384)
    yield Task("GEMM n or k ≥ 16384, H100", runs, beyond.to_numpy())


def devices(data: Path) -> Iterator[Task]:
    """GEMM on devices never seen."""
    runs = operators(data, "gemm")
    formats = runs["config.format"].isin(["bf16", "fp8", "fp8_block"])
    ours = (runs["config.backend"] == "trtllm") | runs["device"].isin([B60]) | (
        runs["device"].astype(str).str.contains("A100") & (runs["config.backend"] == "sglang")
    )  # fmt: skip
    runs = runs[formats & ours].reset_index(drop=True)
    known = ~runs["device"].isin([RTX, B60])
    for device, name in ((RTX, "RTX PRO 6000"), (B60, "Arc B60")):
        part = runs[known | (runs["device"] == device)].reset_index(drop=True)
        test = (part["device"] == device).to_numpy()
        copy_nearest(part, test, name)
        few = {10: 10, 64: 10, 512: 3}
        yield Task(f"GEMM, device {name} (from A100, H100, L40S)", part, test, few=few)


def copy_nearest(runs: pd.DataFrame, test: np.ndarray, name: str) -> None:
    """Print the error of taking a known device's measurement of the same shape and format."""
    keys = ["problem.M", "problem.N", "problem.K", "config.format"]
    for device in runs["device"][~test].unique():
        there = runs[(runs["device"] == device) & ~test].drop_duplicates(keys)
        both = runs[test].merge(there[[*keys, "time_ms"]], on=keys, suffixes=("", "_there"))
        value, truth = both["time_ms_there"].to_numpy(), both["time_ms"].to_numpy()
        cell = errors(score(truth, value, np.zeros(len(both), dtype=int)))
        print(f"| {name}: copying {device} | {len(both):,} | {cell} | | | | | | |", flush=True)


def attention(data: Path) -> Iterator[Task]:
    """Attention on one known device."""
    runs = operators(data, "context_attention", device=H100, backend="trtllm")
    heads = ["problem.heads", "problem.kv_heads", "problem.head_dim"]
    yield Task("attention prefill, heads, H100", runs, held_out(runs, heads))
    runs = operators(data, "generation_attention", device=H100, backend="trtllm")
    yield Task("attention decode, KV length, H100", runs, held_out(runs, ["problem.kv_len"]))


def moe(data: Path) -> Iterator[Task]:
    """Mixtures of experts on one known device."""
    runs = operators(data, "moe", device=H100, backend="trtllm")
    yield Task("MoE tokens, H100", runs, held_out(runs, ["problem.tokens"]))
    for seed in range(2):
        yield Task(f"MoE models, H100 (draw {seed + 1})", runs, held_out(runs, MODEL, seed))


def collectives(data: Path) -> Iterator[Task]:
    """All-reduce."""
    tables = [operators(data, name) for name in ("custom_allreduce", "nccl")]
    runs = pd.concat(tables, ignore_index=True)
    runs = runs[runs["kernel"] == "all_reduce"].reset_index(drop=True)
    sizes = ["problem.message_bytes"]
    for seed in range(2):
        one = runs[runs["device"] == H100].reset_index(drop=True)
        yield Task(f"all-reduce sizes, H100 (draw {seed + 1})", one, held_out(one, sizes, seed))
    yield Task("all-reduce sizes, four devices", runs, held_out(runs, sizes))


def power(data: Path) -> Iterator[Task]:
    """Mean watts on one known device."""
    runs = operators(data, "power_h200_gemm")
    shape = ["problem.N", "problem.K"]
    yield Task("power, GEMM (n, k), H200", runs, held_out(runs, shape), "power_w")
    runs = operators(data, "power_h200_moe")
    yield Task("power, MoE tokens, H200", runs, held_out(runs, ["problem.tokens"]), "power_w")
    runs = operators(data, "power_h200_context_attention")
    heads = ["problem.heads", "problem.kv_heads", "problem.head_dim"]
    yield Task("power, prefill heads, H200", runs, held_out(runs, heads), "power_w")


def spaces(data: Path) -> Iterator[Task]:
    """Tuning spaces: a tenth of the configurations known."""
    for path in sorted((data / "spaces").glob("*.parquet")):
        runs = read_runs(path)
        runs = runs.drop(columns=[c for c in runs if c.startswith(("static.", "counter."))])
        rng = np.random.default_rng(0)
        yield Task(f"space {path.stem}", runs, rng.random(len(runs)) >= 0.1)


def vidur(data: Path) -> Iterator[Task]:
    """Whole models held out of Vidur's MLP profiles."""
    runs = import_runs(data / "llm" / "vidur_mlp.parquet", "vidur").runs
    for kernel in ("gemm", "norm", "elementwise"):
        rows = runs[runs["kernel"] == kernel].reset_index(drop=True).dropna(axis=1, how="all")
        for models in (["CodeLlama-34b"], ["Llama-2-70b", "Llama-3-70B"]):
            test = rows["source"].astype(str).str.contains("|".join(models)).to_numpy()
            yield Task(f"Vidur {kernel}, {' and '.join(models)}", rows, test)


def others(data: Path) -> Iterator[Task]:
    """Operators of which no more is known than their columns, or little."""
    for name, size in OTHERS.items():
        runs = operators(data, name, device=H100)
        yield Task(f"{name} {size}, H100", runs, held_out(runs, [f"problem.{size}"]))


def random_rows(data: Path) -> Iterator[Task]:
    """Single rows held out: what most of the literature reports, and what a table allows at all."""
    for name, what, target in RANDOM:
        only = {} if name.startswith("power") else {"device": H100, "backend": "trtllm"}
        runs = operators(data, name, **only)
        out = np.random.default_rng(0).random(len(runs)) < SHARE
        yield Task(f"{what} random rows", runs, out, target)


GROUPS: dict[str, Callable[[Path], Iterator[Task]]] = {
    "gemm": gemm,
    "devices": devices,
    "attention": attention,
    "moe": moe,
    "collectives": collectives,
    "power": power,
    "vidur": vidur,
    "spaces": spaces,
    "others": others,
    "random": random_rows,
}

if __name__ == "__main__":
    sys.exit(main())
