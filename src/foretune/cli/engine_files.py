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

    from foretune.plan import ModelDescription
    from foretune.plan.engine_files.guesses import EngineFile
    from foretune.plan.engine_files.layer import Engine, Layer

LINEAR_CONFIG_FOLDERS = {
    "vllm": "vllm/model_executor/layers/quantization/utils/configs",
    "sglang": "sglang/kernels/ops/gemm/configs",
}
"""Folder of an engine's files of linear layers, as of vLLM 0.33 and SGLang 0.5.23."""
LIMIT_S = 180.0
"""Time limit of one measurement; the first one imports vLLM."""
EXPERT_CONFIG_FOLDER = "sglang/srt/layers/moe/moe_runner/triton_utils"
DEVICE = typer.Option(
    "", help="The GPU: h100_sxm, or its name in the driver. With --measure: this machine's."
)
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
MEASURE = typer.Option(
    False, "--measure", help="Measure vLLM's kernels on this machine's GPU; --out is needed."
)
BUDGET = typer.Option(
    None, help="With --measure: configurations per number of tokens. Default: 16."
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
    measure: bool = MEASURE,
    tokens: str = typer.Option("", help="With --measure: numbers of tokens, like 1,16,64."),
    budget: int | None = BUDGET,
    out: Path = typer.Option(None, help="Folder to write to; by default, nothing is written."),
) -> None:
    """List the tuned files that an engine looks for, and guess the missing ones.

    A guess is what the tuned files of similar layers agree on; it is not measured.

    With --measure, files hold what beats the engine's default; their card says by how much.
    """
    from foretune.plan import Formats, Layout, checkpoint_formats, describe_model
    from foretune.plan.engine_files.folder import relative_path, write_files
    from foretune.plan.engine_files.guesses import tuned_file_layers
    from foretune.plan.engine_files.layer import Engine

    if engine not in get_args(Engine):
        raise UnknownName("engine with tuned files", engine, get_args(Engine))
    kind = cast("Engine", engine)
    tp, dp, ep = _parse_layout(layout)
    if not measure and (tokens or budget is not None):
        raise UsageError("--tokens and --budget are of --measure")
    gpu_name = _local_gpu_name(kind, device, out, ep) if measure else _gpu_name(device)
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
        if measure:
            files = _measure_missing(files, described, out, _parse_token_counts(tokens), budget)
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


def _local_gpu_name(engine: "Engine", device: str, out: Path | None, ep: int) -> str:
    """Return the name of this machine's GPU, if its kernels can be measured."""
    from foretune.collect.devices import local_gpus

    if engine != "vllm":
        raise UsageError("--measure: only vLLM's kernels are measured")
    if out is None:
        raise UsageError("--measure needs --out, the folder for the files")
    if ep > 1:
        raise UsageError("--measure: experts that are spread over ranks (ep) are not measured")
    gpus = local_gpus()
    if not gpus:
        raise UsageError("--measure needs a GPU, and this machine has none")
    if not gpus[0].architecture.startswith("sm_"):  # vLLM names files of others differently
        raise UsageError("--measure: only NVIDIA GPUs are measured")
    if device and _gpu_name(device) != gpus[0].name:
        raise UsageError(f"--measure measures this machine's GPU, {gpus[0].name}: leave --device "
                         "out")  # fmt: skip
    return gpus[0].name


def _measure_missing(
    files: list["EngineFile"],
    model: "ModelDescription",
    out: Path,
    tokens: list[int],
    budget: int | None,
) -> list["EngineFile"]:
    """Measure the missing files; each is written as soon as it is done."""
    from foretune.collect.devices import local_device
    from foretune.collect.runner import IsolatedRunner
    from foretune.console import progress_bar
    from foretune.plan.engine_files.folder import check_folder, write_files
    from foretune.plan.engine_files.measuring import DEFAULT_BUDGET, measure_file

    count = options.require_positive_int(DEFAULT_BUDGET if budget is None else budget, "--budget")
    missing = [file for file in files if file.status != "there"]
    check_folder(out, [file.layer for file in missing], "vllm")
    done = [file for file in files if file.status == "there"]
    runner = IsolatedRunner(local_device("cuda"), limit_s=LIMIT_S)
    with runner, progress_bar(notes=True) as progress:
        for file in missing:
            done.append(
                measure_file(file, model, runner, tokens=tokens, budget=count, progress=progress)
            )
            write_files(out, done[-1:], "vllm")
    return done


def _parse_token_counts(tokens: str) -> list[int]:
    from foretune.plan.engine_files.guesses import TOKEN_COUNTS

    if not tokens:
        return list(TOKEN_COUNTS)
    try:
        return [options.require_positive_int(int(word), "--tokens") for word in tokens.split(",")]
    except ValueError:
        raise UsageError(f"--tokens {tokens!r}: give numbers, like 1,16,64") from None


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
    for file in files:
        if file.measured:
            wins = [f"{count}: {entry.speedup:.2f}×" for count, entry in file.measured.items()
                    if entry.beats_default]  # fmt: skip
            outcome = f"faster than the default at {', '.join(wins)}" if wins else file.status
            failed = f"; {len(file.failed)} failed" if file.failed else ""
            output.say(f"{_layer_sizes(file.layer)}: {outcome}{failed}")


def _say_next_steps(
    output: Output, out: Path | None, written: list["EngineFile"], engine: str
) -> None:
    from foretune.plan.engine_files.folder import LINEAR_FOLDER

    if out is None:
        return
    if not written:
        output.say("nothing to write: no file was written")
        return
    guessed = sum(not file.measured for file in written)
    count = f"{len(written)} file{'s' if len(written) > 1 else ''}"
    how = "measured" if not guessed else "guessed and not measured"
    if guessed and guessed < len(written):
        how = f"{guessed} guessed and not measured"
    output.say(f"{out}: {count}, {how}")
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
    gains = {tokens: entry.speedup for tokens, entry in file.measured.items()}
    return {"name": file.layer.file_name_for(engine), "parts": file.parts, "status": file.status,
            "agreement": file.agreement, "configs": configs, "gains": gains,
            "failed": dict(file.failed)}  # fmt: skip
