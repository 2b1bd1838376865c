"""``foretune engine-config``: the tuned files that a serving engine will miss."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import Output, percent
from foretune.cli.plan import inputs
from foretune.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from foretune.plan.engine_files import EngineFile
    from foretune.tune.exporting.layer import Layer

ENGINES = ("vllm", "sglang")
USE = {
    "vllm": "start vLLM with VLLM_TUNED_CONFIG_FOLDER={out}",
    "sglang": "start SGLang with SGLANG_MOE_CONFIG_DIR={out}",
}
INSIDE = {
    "vllm": "vllm/model_executor/layers/quantization/utils/configs",
    "sglang": "sglang/kernels/ops/gemm/configs",
}
"""Where in its package an engine looks for files of products."""


def engine_config(
    engine: str = typer.Argument(help="vllm or sglang."),
    model: str = inputs.MODEL,
    system: str = typer.Option(None, help="Kind of GPU, like h100_sxm."),
    device: str = typer.Option(None, help="Or the GPU's name, as its driver gives it."),
    tp: int = typer.Option(1, help="Ranks that share each dense projection."),
    dp: int = typer.Option(1, help="Groups of ranks with requests of their own."),
    ep: int = typer.Option(1, help="Groups of experts."),
    formats: str = typer.Option(
        "", "--format", help="Of the weights, like fp8_block. Default: the checkpoint's."
    ),
    tuned: list[Path] = typer.Option(
        [], help="Folder with tuned files. Default: that of the installed engine."
    ),
    triton: str = typer.Option("", help="Version of Triton, for SGLang's files of experts."),
    out: Path = typer.Option(None, help="Folder to write to; without it nothing is written."),
    as_json: bool = options.JSON,
) -> None:
    """List the tuned files that an engine looks for, and guess those it lacks.

    A guess is what tuned files of similar layers agree on; it is not measured.
    """
    if engine not in ENGINES:
        raise UnknownName("engine with tuned files", engine, ENGINES)
    if (system is None) == (device is None):
        raise UsageError("give --system or --device: tuned files are for one kind of GPU")
    for value, option in ((tp, "--tp"), (dp, "--dp"), (ep, "--ep")):
        options.at_least_one(value, option)
    if tp * dp % ep:
        raise UsageError(f"--ep {ep} does not divide the {tp * dp} ranks of --tp and --dp")
    from foretune.plan import Formats, Layout, checkpoint_formats, describe_model, find_system
    from foretune.plan.engine_files import engine_files, layers_of, write_files
    from foretune.tune.exporting.winners import Winners

    described = describe_model(model)
    where = device or find_system(system).device.name
    layout = Layout(tp, 1, dp, tp * dp // ep, ep) if described.is_moe else Layout(tp, 1, dp)
    chosen = Formats(formats) if formats else checkpoint_formats(described)
    layers = layers_of(described, layout, chosen, where)
    output = Output(as_json)
    if not layers:
        output.say(f"{described.name} in {chosen}: {engine} looks for no tuned file")
    winners = Winners.read(tuned or _installed(engine))
    files = engine_files(layers, winners, engine)  # type: ignore[arg-type]
    _show(output, f"{described.name} on {layout}, {where}", files)
    guessed = sum(bool(file.guesses) for file in files)
    if out is not None and guessed:
        write_files(out, files, engine, triton)  # type: ignore[arg-type]
        output.say(f"{out}: {guessed} files, guessed and not measured.")
        if any(f.guesses and f.layer.experts for f in files):
            output.say(f"To use them, {USE[engine].format(out=out.absolute())}")
        if any(f.guesses and not f.layer.experts for f in files):
            output.say(f"Copy those in {out / 'products'} to {INSIDE[engine]}")
    elif out is not None:
        output.say("nothing to guess: no file was written")
    of_files = [_as_json(file, engine) for file in files]
    said = {"engine": engine, "model": described.name, "device": where, "files": of_files}
    output.result({**said, "out": str(out) if out and guessed else None})


def _installed(engine: str) -> list[Path]:
    """Return the folder of an installed engine, without importing it."""
    found = find_spec(engine)
    if found is None or not found.origin:
        raise UsageError(
            f"{engine} is not installed here: give --tuned the folder of an unpacked wheel of it"
        )
    return [Path(found.origin).parent]


def _show(output: Output, title: str, files: list["EngineFile"]) -> None:
    rows = [[", ".join(f.parts), _sizes(f.layer), f.status, percent(f.agreement)] for f in files]
    if rows:
        output.table(title, ("part", "layer", "file", "agreement"), rows)


def _sizes(layer: "Layer") -> str:
    sizes = (
        f"E={layer.experts} N={layer.size}"
        if layer.experts
        else (f"N={layer.size} K={layer.depth}")
    )
    return f"{sizes} {layer.dtype or '16 bit'}"


def _as_json(file: "EngineFile", engine: str) -> dict[str, object]:
    configs = {tokens: dict(guess.config) for tokens, guess in file.guesses.items()}
    return {"name": file.layer.named(engine), "parts": file.parts, "status": file.status,  # type: ignore[arg-type]
            "agreement": file.agreement, "configs": configs}  # fmt: skip
