"""``foretune plan train``: parallelism, memory and time of training a language model."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options, plan_documents, plan_links, plan_options
from foretune.cli.output import Output
from foretune.errors import UsageError, require_known
from foretune.values import percent

if TYPE_CHECKING:
    import pandas as pd

    from foretune.plan import System
    from foretune.plan.train.training_planner import TrainingPlan

HEADINGS = ("layout", "micro", "ZeRO", "recompute", "step s", "MFU", "bubble", "GiB")
MEMORY_USES = ("weights", "gradients", "optimizer", "activations", "buffers")
NOTES = (
    "formulas over measured operators, checked in benchmarks/plan_training.py",
    "pauses, checkpoints and failures are not counted",
)
ZERO_BUBBLE_NOTE = (
    "zb1 and zb2: zero bubble within one and two times the activations (arXiv:2401.10241); "
    "not in Megatron-LM itself, but in its fork sail-sg/zero-bubble-pipeline-parallelism"
)
TOKENS = typer.Option(0.0, help="Tokens to train on; adds days and cost.", show_default=False)
FORMATS = typer.Option(
    "bf16/fp32",
    help="Formats of matrix products (bf16 or fp8) and of summed gradients (fp32 or bf16).",
)
SOFTWARE = typer.Option(
    "megatron", help="megatron (fused kernels) or pytorch (its own, with FSDP)."
)
OVERLAP = typer.Option(
    False, "--overlap", help="Overlap tensor-parallel communication with matrix products."
)
ZERO_BUBBLE = typer.Option(
    False,
    "--zero-bubble",
    help="Also fill pipelines' bubbles with weights' gradients, if the software can (zb1, zb2).",
)
OFFLOAD = typer.Option(
    0.0,
    help="Maximum GiB per GPU of optimizer state in host memory. By default, all of it if "
    "nothing fits otherwise.",
    show_default=False,
)


def train(
    context: typer.Context,
    model: str = plan_options.MODEL,
    system: str = typer.Option(..., help="Kind of GPU, like h100_sxm."),
    gpus: int = typer.Option(..., help="Number of GPUs."),
    batch: int = typer.Option(..., help="Sequences per optimizer step, over all replicas."),
    sequence: int = typer.Option(..., help="Tokens per sequence."),
    lengths: str = plan_documents.LENGTHS,
    tokens: float = TOKENS,
    formats: str = FORMATS,
    software: str = SOFTWARE,
    overlap: bool = OVERLAP,
    zero_bubble: bool = ZERO_BUBBLE,
    offload: float = OFFLOAD,
    link: list[str] = plan_links.HOST_LINK,
    operators: Path = plan_options.OPERATORS,
    prices: Path = plan_options.PRICES,
    top: int = plan_options.TOP,
) -> None:
    """Predict every way to train a model on the given GPUs, and show the fastest."""
    from foretune.plan import describe_model
    from foretune.plan.describe.catalog import resolve_system
    from foretune.plan.train.recipe import TrainingTask
    from foretune.plan.train.step import SOFTWARE as KNOWN_SOFTWARE
    from foretune.plan.train.training_planner import plan_training

    # What is asked.
    counts = {"--gpus": gpus, "--batch": batch, "--sequence": sequence, "--top": top}
    for name, value in counts.items():
        options.require_positive_int(value, name)
    if not 0 <= tokens < float("inf"):
        raise UsageError(f"--tokens {tokens:g}: give a number of tokens, 0 or more")
    require_known("software", software, KNOWN_SOFTWARE)
    precision, _, gradients = formats.partition("/")
    if not precision:
        raise UsageError(f"--formats {formats!r}: write bf16, fp8 or fp8/bf16")
    known_formats: dict[str, Any] = {"precision": precision, "gradients": gradients or "fp32"}
    documents, reading_notes = plan_documents.read_documents(lengths, sequence)
    task = TrainingTask(batch, sequence, overlap=overlap, documents=documents, **known_formats)

    # Every recipe that fits, the fastest first.
    timers, tables = plan_options.load_timers(operators)
    named = resolve_system(system, plan_options.read_prices(prices))
    (hardware,) = plan_links.with_links([named], link, known=["host"])
    described = describe_model(model)
    plan_task = partial(
        plan_training,
        described,
        hardware,
        gpus=gpus,
        timers=timers,
        calibration=KNOWN_SOFTWARE[software],
        offload=offload,
        zero_bubble=zero_bubble,
    )
    training_plan = plan_task(task=task)

    output = Output(options.root_options(context).as_json)
    shown = training_plan.distinct.head(top)
    shape = f"{batch} × {sequence} tokens, {precision}"
    title = f"training {described.name} on {gpus} × {hardware.name}, {shape}"
    output.table(title, HEADINGS, [_row(row) for _, row in shown.iterrows()])
    output.say("")
    for line in _sentences(training_plan, tokens):
        output.say(line)
    if documents is not None:
        padded = plan_task(task=replace(task, documents=None))
        gain = plan_documents.packing_gain(training_plan, padded)
        output.say(plan_documents.describe_packing(gain, sequence))
    assumptions = _assumptions(shown, hardware, tables.systems if tables else None)
    notes = [*reading_notes, *NOTES, *assumptions]
    for note in notes:
        output.say(f"note: {note}")
    result = _to_json(training_plan, shown, tokens, notes)
    output.result(result if documents is None else {**result, "packing": gain})


def _row(row: "pd.Series[Any]") -> list[str]:
    offload = ", host" if row["offload"] else ""
    return [
        row["layout"].replace("chunks", "v"),
        str(row["micro_batch"]),
        str(row["zero"]),
        f"{row['recompute']}{offload}",
        f"{row['step_ms'] / 1e3:.4g}",
        percent(row["mfu"]),
        percent(row["bubble"]),
        f"{row['memory_gib']:.1f}",
    ]


def _assumptions(
    shown: "pd.DataFrame", system: "System", measured: list[str] | None
) -> Iterator[str]:
    """Yield what a plan assumes: schedules, state in host memory, operators of other systems."""
    from foretune.plan.train.step import HOST_GBPS

    if shown["zero_bubble"].any():
        yield ZERO_BUBBLE_NOTE
    if shown["offload"].any():
        yield (
            f"offload as in ZeRO-Offload, not measured: {system.copied_gbps:.3g} GB/s to the host, "
            f"{HOST_GBPS:g} GB/s of its memory per GPU; assumes enough host memory"
        )
    if measured is None:
        yield "operator times are rooflines: no measured tables (pip install '.[llm]')"
    elif system.name not in measured:
        yield (
            f"no operator was measured on {system.name}: efficiencies are those of other GPUs; on "
            "an MI250X, predictions are 1.5 to 1.8 times the published rates"
        )


def _sentences(training_plan: "TrainingPlan", tokens: float) -> list[str]:
    """Return the best recipe in words: its rate, its memory, what it waits for, its cost."""
    from foretune.plan.train.training_planner import STEP_PARTS

    best = training_plan.best
    step_s = best["step_ms"] / 1e3
    recipes = f"{len(training_plan.candidates)} recipes that fit"
    rate = f"{step_s:.4g} s, {best['tokens_per_s_per_gpu']:.0f} tokens/s per GPU"
    lines = [f"best of {recipes} ({training_plan.recipes_considered} considered): {rate}"]

    memory = ", ".join(f"{use} {best[f'{use}_gib']:.1f}" for use in MEMORY_USES)
    if best["offload"]:
        memory += f"; {best['offloaded_gib']:.1f} of optimizer state on the host"
    lines.append(f"GiB of the fullest GPU: {memory}")

    limit = training_plan.limited_by
    share = percent(best[limit] / best["step_ms"])
    lines.append(
        f"besides computing, it waits longest for {STEP_PARTS[limit]}: {share} of the step"
    )
    if len(training_plan.distinct) > 1:
        gap = training_plan.distinct["step_ms"][1] / best["step_ms"] - 1
        lines.append(f"the next recipe is {percent(gap)} slower")
    if tokens > 0:
        usd = training_plan.cost(tokens)
        cost = "at an unknown price" if math.isnan(usd) else f"{usd:,.0f} USD"
        lines.append(f"{tokens:.3g} tokens: {training_plan.days(tokens):.1f} days, {cost}")
    return lines


def _to_json(
    training_plan: "TrainingPlan", shown: "pd.DataFrame", tokens: float, notes: list[str]
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "best": training_plan.best.to_dict(),
        "candidates": shown.to_dict("records"),
        "fitting": len(training_plan.candidates),
        "looked_at": training_plan.recipes_considered,
        "limited_by": training_plan.limited_by,
        "notes": notes,
    }
    if tokens > 0:
        result |= {"days": training_plan.days(tokens), "usd": training_plan.cost(tokens)}
    return result
