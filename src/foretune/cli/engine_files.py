"""``foretune engine-config``: the tuned files that a serving engine will miss."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import typer

from foretune.cli import options
from foretune.cli.output import Output, percent
from foretune.cli.plan import inputs
from foretune.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from foretune.plan.engine_files import EngineFile
    from foretune.tune.exporting.layer import Engine, Layer

INSIDE = {
    "vllm": "vllm/model_executor/layers/quantization/utils/configs",
    "sglang": "sglang/kernels/ops/gemm/configs",
}
"""Where in its package an engine looks for files of linear layers: vLLM 0.33, SGLang 0.5.23."""
EXPERTS_INSIDE = "sglang/srt/layers/moe/moe_runner/triton_utils"


def engine_config(
    engine: str = typer.Argument(help="vllm or sglang."),
    model: str = inputs.MODEL,
    system: str = typer.Option(None, help="Kind of GPU, like h100_sxm."),
    device: str = typer.Option(None, help="Or the GPU's name, as its driver gives it."),
    tp: int = typer.Option(1, help="Ranks that share each dense projection."),
    dp: int = typer.Option(1, help="Groups of ranks with requests of their own."),
    ep: int = typer.Option(1, help="Groups of experts; vLLM has 1, or one for each rank."),
    formats: str = typer.Option(
        "", "--format", help="Of the weights, like fp8_block. Default: the checkpoint's."
    ),
    tuned: list[Path] = typer.Option(
        [], help="Folder with the engine's tuned files. Default: that of the installed engine."
    ),
    also: list[Path] = typer.Option([], help="Folder with another engine's, to learn from."),
    triton: str = typer.Option("", help="Version of Triton, for SGLang's files of experts."),
    out: Path = typer.Option(None, help="Folder to write to; without it nothing is written."),
    as_json: bool = options.JSON,
) -> None:
    """List the tuned files that an engine looks for, and guess those it lacks.

    A guess is what tuned files of similar layers agree on; it is not measured.
    """
    from foretune.plan import Formats, Layout, checkpoint_formats, describe_model
    from foretune.plan.engine_files import engine_files, layers_of, write_files
    from foretune.tune.exporting.layer import Engine
    from foretune.tune.exporting.winners import Winners, architecture_of

    if engine not in get_args(Engine):
        raise UnknownName("engine with tuned files", engine, get_args(Engine))
    kind = cast("Engine", engine)
    where = _device(system, device)
    for value, option in ((tp, "--tp"), (dp, "--dp"), (ep, "--ep")):
        options.at_least_one(value, option)
    if tp * dp % ep or (kind == "vllm" and ep not in (1, tp * dp)):
        allowed = f"1 or {tp * dp}" if kind == "vllm" else f"what divides {tp * dp}"
        raise UsageError(f"--ep {ep} is not possible on {tp * dp} ranks: give {allowed}")
    described, output = describe_model(model), Output(as_json)
    layout = Layout(tp, 1, dp, tp * dp // ep, ep) if described.is_moe else Layout(tp, 1, dp)
    chosen = Formats(formats) if formats else checkpoint_formats(described)
    layers = layers_of(described, layout, chosen, where, kind)
    files, guessed = [], 0
    if not layers:
        output.say(f"{described.name} in {chosen}: {engine} looks for no tuned file")
    else:
        own = Winners.read(tuned or _installed(engine))
        known = Winners([*own.layers.values(), *Winners.read(also).layers.values()] if also
                        else own.layers.values())  # fmt: skip
        files = engine_files(layers, own, known)
        guessed = sum(bool(file.guesses) for file in files)
        _show(output, f"{described.name} on {layout}, {where}", files)
        if architecture_of(where) is None:
            output.say(f"no architecture is known of {where}: only its own files have a vote")
        if own.left_out:
            output.say(f"{own.left_out} files in other formats left out")
    if out is not None and guessed:
        write_files(out, files, kind, triton)
        _say_what_to_do(output, out, [f for f in files if f.guesses], engine)
    elif out is not None:
        output.say("nothing to guess: no file was written")
    said = {"engine": engine, "model": described.name, "device": where}
    of_files = [_as_json(file, kind) for file in files]
    output.result({**said, "files": of_files, "out": str(out) if out and guessed else None})


def _device(system: str | None, device: str | None) -> str:
    """Return the GPU's name as its driver gives it; names of files have ``_`` for spaces."""
    if (system is None) == (device is None):
        raise UsageError("give --system or --device: tuned files are for one kind of GPU")
    if system is not None:
        from foretune.plan import find_system

        return find_system(system).device.name
    name = str(device).replace("_", " ").strip()
    if not name or set(name) & set("/\\,"):
        raise UsageError(f"--device {device!r}: give the name that nvidia-smi or rocm-smi prints")
    return name


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
    output.table(title, ("part", "layer", "file", "agreement"), rows)


def _say_what_to_do(output: Output, out: Path, guessed: list["EngineFile"], engine: str) -> None:
    from foretune.plan.engine_files import LINEAR

    count = f"{len(guessed)} file{'s' if len(guessed) > 1 else ''}"
    output.say(f"{out}: {count}, guessed and not measured")
    if any(file.layer.experts for file in guessed):
        output.say(
            f"For experts: start vLLM with VLLM_TUNED_CONFIG_FOLDER={out.absolute()}"
            if engine == "vllm"
            else f"For experts: copy {out / 'configs'} to {EXPERTS_INSIDE}"
        )
    if not all(file.layer.experts for file in guessed):
        output.say(f"For linear layers: copy what is in {out / LINEAR} to {INSIDE[engine]}")


def _sizes(layer: "Layer") -> str:
    block = "" if layer.block_shape is None else " in blocks"
    return f"{layer.sizes.replace(',', ' ')} {layer.dtype or '16 bit'}{block}"


def _as_json(file: "EngineFile", engine: "Engine") -> dict[str, object]:
    configs = {tokens: dict(guess.config) for tokens, guess in file.guesses.items()}
    return {"name": file.layer.named(engine), "parts": file.parts, "status": file.status,
            "agreement": file.agreement, "configs": configs}  # fmt: skip
