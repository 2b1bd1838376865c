"""``foretune engine-config``: the tuned files that a serving engine lacks."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import typer

from foretune.cli import options, plan_options
from foretune.cli.output import Output, percent
from foretune.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foretune.plan.engine_files.guesses import EngineFile
    from foretune.plan.engine_files.layer import Engine, Layer

LINEAR_CONFIG_FOLDERS = {
    "vllm": "vllm/model_executor/layers/quantization/utils/configs",
    "sglang": "sglang/kernels/ops/gemm/configs",
}
"""Folder of an engine's files of linear layers, as of vLLM 0.33 and SGLang 0.5.23."""
EXPERT_CONFIG_FOLDER = "sglang/srt/layers/moe/moe_runner/triton_utils"
DEVICE = typer.Option("", help="The GPU: h100_sxm, or its name in the driver.")
LAYOUT = typer.Option(
    "",
    help="tp=8,dp=2,ep=16: ranks per dense projection, replicas of attention, and groups of "
    "experts (vLLM: 1, or one per rank). Default: one rank.",
    show_default=False,
)
FORMATS = typer.Option(
    "", "--format", help="Format of the weights, like fp8_block. Default: the checkpoint's."
)
TUNED = typer.Option(
    [], help="Folder with the engine's tuned files. Default: that of the installed engine."
)


def engine_config(
    context: typer.Context,
    engine: str = typer.Argument(help="vllm or sglang."),
    model: str = plan_options.MODEL,
    device: str = DEVICE,
    layout: str = LAYOUT,
    formats: str = FORMATS,
    tuned: list[Path] = TUNED,
    also: list[Path] = typer.Option([], help="Folder with another engine's, to learn from."),
    triton: str = typer.Option("", help="Version of Triton, for SGLang's files of experts."),
    out: Path = typer.Option(None, help="Folder to write to; by default, nothing is written."),
) -> None:
    """List the tuned files that an engine looks for, and guess the missing ones.

    A guess is what the tuned files of similar layers agree on; it is not measured.
    """
    from foretune.plan import Formats, Layout, checkpoint_formats, describe_model
    from foretune.plan.engine_files.folder import relative_path, write_files
    from foretune.plan.engine_files.guesses import tuned_file_layers
    from foretune.plan.engine_files.layer import Engine

    if engine not in get_args(Engine):
        raise UnknownName("engine with tuned files", engine, get_args(Engine))
    kind = cast("Engine", engine)
    tp, dp, ep = _parse_layout(layout)
    gpu_name = _gpu_name(device)
    _check_ranks(kind, tp, dp, ep)
    described, output = describe_model(model), Output(options.root_options(context).as_json)
    ranks = Layout(tp, 1, dp, tp * dp // ep, ep) if described.is_moe else Layout(tp, 1, dp)
    chosen = Formats(formats) if formats else checkpoint_formats(described)
    layers = tuned_file_layers(described, ranks, chosen, gpu_name, kind)
    if out is not None:
        for layer in layers:
            relative_path(layer, kind, triton)  # a missing --triton is said before the work
    files: list[EngineFile] = []
    if layers:
        files, skipped = _guess_files(layers, tuned or _installed_folder(engine), also)
        _show(output, f"{described.name} on {ranks}, {gpu_name}", files)
        _say_limits(output, gpu_name, skipped)
    else:
        output.say(f"{described.name} in {chosen}: {engine} looks for no tuned file")
    written = [] if out is None else list(write_files(out, files, kind, triton).values())
    _say_next_steps(output, out, written, engine)
    header = {"engine": engine, "model": described.name, "device": gpu_name}
    entries = [_file_to_json(file, kind) for file in files]
    output.result({**header, "files": entries, "out": str(out) if written else None})


def _guess_files(
    layers: "Mapping[Layer, tuple[str, ...]]", tuned: list[Path], also: list[Path]
) -> "tuple[list[EngineFile], int]":
    """Return the files of the layers, and how many tuned files were in unknown formats."""
    from foretune.plan.engine_files.guesses import engine_files
    from foretune.plan.engine_files.tuned_layers import TunedLayerIndex

    of_engine = TunedLayerIndex.read(tuned)
    others = TunedLayerIndex.read(also).layers.values() if also else ()
    everything = TunedLayerIndex([*of_engine.layers.values(), *others])
    return engine_files(layers, of_engine, everything), of_engine.skipped


def _say_limits(output: Output, gpu_name: str, skipped: int) -> None:
    from foretune.plan.engine_files.tuned_layers import architecture_of

    if architecture_of(gpu_name) is None:
        output.say(f"{gpu_name} has no known architecture: only files of the same GPU have a vote")
    if skipped:
        output.say(f"{skipped} files in other formats left out")


def _parse_layout(text: str) -> tuple[int, int, int]:
    """Parse ``--layout`` into tp, dp and ep; each is 1 by default."""
    sizes = options.parse_numbers(text.split(",") if text else [], "--layout", ("tp", "dp", "ep"))
    tp, dp, ep = (
        options.require_positive_int(int(sizes.get(name, 1)), f"--layout {name}")
        for name in ("tp", "dp", "ep")
    )
    return tp, dp, ep


def _check_ranks(engine: "Engine", tp: int, dp: int, ep: int) -> None:
    if tp * dp % ep or (engine == "vllm" and ep not in (1, tp * dp)):
        allowed = f"1 or {tp * dp}" if engine == "vllm" else f"a divisor of {tp * dp}"
        raise UsageError(f"--layout ep={ep} is not possible on {tp * dp} ranks: give {allowed}")


def _gpu_name(device: str) -> str:
    """Return the GPU's name in its driver, which has capitals; names of systems have none."""
    if not device:
        raise UsageError("give --device: tuned files are for one kind of GPU")
    if device == device.lower():
        from foretune.plan import find_system

        return find_system(device).device.name
    name = device.replace("_", " ").strip()  # as in names of files
    if set(name) & set("/\\,"):
        raise UsageError(f"--device {device!r}: give the name that nvidia-smi or rocm-smi prints")
    return name


def _installed_folder(engine: str) -> list[Path]:
    """Return the folder of an installed engine, without importing it."""
    found = find_spec(engine)
    if found is None or not found.origin:
        raise UsageError(
            f"{engine} is not installed here: give --tuned the folder of an unpacked wheel of it"
        )
    return [Path(found.origin).parent]


def _show(output: Output, title: str, files: list["EngineFile"]) -> None:
    rows = [
        [", ".join(f.parts), _layer_sizes(f.layer), f.status, percent(f.agreement)] for f in files
    ]
    output.table(title, ("part", "layer", "file", "agreement"), rows)


def _say_next_steps(
    output: Output, out: Path | None, written: list["EngineFile"], engine: str
) -> None:
    from foretune.plan.engine_files.folder import LINEAR_FOLDER

    if out is None:
        return
    if not written:
        output.say("nothing to write: no file was written")
        return
    count = f"{len(written)} file{'s' if len(written) > 1 else ''}"
    output.say(f"{out}: {count}, guessed and not measured")
    if any(file.layer.experts for file in written):
        output.say(
            f"For experts: start vLLM with VLLM_TUNED_CONFIG_FOLDER={out.absolute()}"
            if engine == "vllm"
            else f"For experts: copy {out / 'configs'} to {EXPERT_CONFIG_FOLDER}"
        )
    if not all(file.layer.experts for file in written):
        output.say(
            f"For linear layers: copy the files in {out / LINEAR_FOLDER} to "
            f"{LINEAR_CONFIG_FOLDERS[engine]}"
        )


def _layer_sizes(layer: "Layer") -> str:
    block = "" if layer.block_shape is None else " in blocks"
    return f"{layer.sizes.replace(',', ' ')} {layer.dtype or '16 bit'}{block}"


def _file_to_json(file: "EngineFile", engine: "Engine") -> dict[str, object]:
    configs = {tokens: dict(config) for tokens, config in file.configs.items()}
    return {"name": file.layer.file_name_for(engine), "parts": file.parts, "status": file.status,
            "agreement": file.agreement, "configs": configs}  # fmt: skip
