"""``foretune engine-config aiter``: rows that AITER's tuned tables lack."""

from pathlib import Path
from typing import TYPE_CHECKING

from foretune.cli.output import Output, percent
from foretune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foretune.device import Device
    from foretune.plan import Formats, Layout, ModelDescription
    from foretune.plan.engine_files.aiter_tables import TableLayer

AITER = "aiter"
SUFFIX = "_tuned_gemm"


def amd_gpu(name: str) -> "Device":
    """Return a GPU that AITER multiplies on.

    Raises:
        UsageError: it is another one.
    """
    from foretune.device import find_device_or_none

    found = find_device_or_none(name)
    if found is None or not str(found.architecture).startswith("gfx9"):
        raise UsageError(f"AITER's tables are of AMD Instinct GPUs, not of {name}: give --system")
    return found


def complete_tables(
    output: Output,
    served: "tuple[ModelDescription, Layout, Formats]",
    gpu: "Device",
    folders: "Sequence[Path]",
    out: Path | None,
) -> None:
    """List the layers that AITER's tables have and lack, and write completed tables."""
    from foretune.plan.engine_files.aiter_tables import (
        fill_tables,
        layers_in_tables,
        read_tables,
        write_tables,
    )

    model, layout, formats = served
    architecture, units = str(gpu.architecture), int(gpu.specs["cores"])
    tables = read_tables(folders)
    layers = fill_tables(
        layers_in_tables(model, layout, formats, architecture), tables, architecture, units
    )
    if not layers:
        output.say(f"{model.name} in {formats}: its layers are in no tuned table of AITER")
    else:
        rows = [
            [
                ", ".join(e.parts),
                _sizes(e),
                e.table.removesuffix(SUFFIX),
                e.status,
                percent(e.agreement),
            ]
            for e in layers
        ]
        title = f"{model.name} on {layout}, {gpu.name}"
        output.table(title, ("part", "layer", "table", "rows", "agreement"), rows)
    written = write_tables(out, layers, tables, architecture, units) if out else {}
    if written:
        count = f"{len(written)} table{'s' if len(written) > 1 else ''}"
        output.say(f"{out}: {count}, new rows guessed and not measured")
        for variable, path in written.items():
            output.say(f"export {variable}={path.absolute()}")
        output.say("AITER builds kernels for its tables: set AITER_REBUILD=1 once")
    elif out is not None:
        output.say("nothing to write: no file was written")
    output.result({
        "engine": AITER, "model": model.name, "device": gpu.name,
        "layers": [_to_json(each) for each in layers],
        "out": {variable: str(path) for variable, path in written.items()} or None,
    })  # fmt: skip


def _sizes(each: "TableLayer") -> str:
    from foretune.plan.engine_files.aiter import TABLE_KINDS

    return " ".join(f"{name}={each.layer[name]}" for name in TABLE_KINDS[each.table].sizes)


def _to_json(each: "TableLayer") -> dict[str, object]:
    guesses = {n: {**choice.values, "agreement": choice.agreement}
               for n, choice in each.guesses.items()}  # fmt: skip
    return {
        "table": each.table,
        "layer": dict(each.layer),
        "parts": each.parts,
        "status": each.status,
        "there": list(each.tuned_tokens),
        "guesses": guesses,
    }
