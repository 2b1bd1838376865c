"""``foretune store`` with vLLM's tuned files: their export, their import."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from foretune.cli import options
from foretune.cli.output import Output

if TYPE_CHECKING:
    from foretune.tune.doors.vllm import ParameterNames
    from foretune.tune.store import Store
    from foretune.tune.store.reader import StoreReader

DEFAULT_KERNEL = "fused_moe"
NAME_MARK = ",device_name="
"""Part of the names of vLLM's tuned files."""


@dataclass(frozen=True)
class TunedLayers:
    """What a command says of vLLM's files: the kernel that they tune, and its parameters.

    ``device`` is empty if the file's is meant.
    """

    kernel: str
    device: str
    naming: "ParameterNames"

    @classmethod
    def from_options(
        cls, kernel: str, device: str, maps: list[str], problem: Mapping[str, Any] | None
    ) -> Self:
        """Parse ``--map``; ``problem`` has further parameters of the kernel's problems."""
        from foretune.tune.doors.vllm import ParameterNames

        vllm_name_of = options.parse_key_values(maps, "--map", "NAME=VALUE")
        kernel_name_of = {vllm_name: name for name, vllm_name in vllm_name_of.items()}
        naming = ParameterNames(kernel_name_of, dict(problem or {}))
        return cls(kernel=kernel or DEFAULT_KERNEL, device=device, naming=naming)


def is_tuned_file(path: Path) -> bool:
    """Return whether vLLM gives its tuned files such a name."""
    return NAME_MARK in path.name


def export_tuned_file(
    output: Output, tuned: "StoreReader", target: Path, layers: TunedLayers
) -> None:
    """Write the choices for the layer that ``target`` names."""
    from foretune.tune.doors.vllm import Layer, export_vllm

    layer = Layer.from_file(target)
    subject = tuned.newest_subject(layers.kernel, layer.device)
    path, n_tokens = export_vllm(tuned, target.parent, subject, layer, layers.naming)
    output.say(f"{path}: {n_tokens} numbers of tokens")
    output.result({"out": str(path), "tokens": n_tokens, **asdict(subject)})


def import_tuned_file(
    output: Output, target: "Store", file: Path, layers: TunedLayers
) -> dict[str, Any]:
    """Add vLLM's choices to the newest version of the kernel; existing choices stay."""
    from foretune.tune.doors.vllm import import_vllm, read_vllm

    device = layers.device or read_vllm(file).layer.device
    is_known = any((s.kernel, s.device) == (layers.kernel, device) for s in target.subjects())
    newest = target.newest_subject(layers.kernel, device) if is_known else None
    subject, new, kept = import_vllm(target, file, layers.kernel, newest, layers.naming)
    output.say(
        f"{file}: {new} choices of {layers.kernel} on {subject.device}, {kept} already known"
    )
    return {"file": str(file), **asdict(subject), "choices": new, "kept": kept}


def copy_nearest_file(output: Output, folder: Path, target: Path) -> None:
    """Write a file for a GPU that nobody tuned: that of the nearest GPU of its architecture."""
    from foretune.tune.doors.tuned_files import TunedFileName, copy_file, find_nearest_file

    wanted = TunedFileName.parse(target)
    nearest = find_nearest_file(folder, wanted)
    n_entries = copy_file(nearest.path, target)
    output.say(
        f"{target}: {n_entries} configurations that were tuned on {nearest.device}; on "
        f"{wanted.device} they are not measured, so what they gain is unknown"
    )
    output.result(
        {
            "out": str(target),
            "from": str(nearest.path),
            "tuned_on": nearest.device,
            "device": wanted.device,
            "entries": n_entries,
            "measured": False,
        }
    )
