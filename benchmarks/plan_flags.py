"""Which flags the engines' own parsers know, and whether every planned command keeps to them.

Run: ``python benchmarks/plan_flags.py vllm-….whl sglang-….whl [--freeze]``. Flags are read from the
sources in the wheels (``pip download --no-deps vllm sglang``), so neither is installed. The table
counts commands of the models in the catalog on one node of each system. ``--freeze`` writes the
lists that the tests compare with; ``--commands`` writes the commands, for ``plan_parsers.py``.
TensorRT-LLM's flags come from its documentation.
"""

import argparse
import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from machine import markdown

from foretune.errors import ForetuneError
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Offload, Workload
from foretune.plan.describe.model_catalog import describe_model, known_models
from foretune.plan.serve.candidates import candidate_deployments, supported_formats
from foretune.plan.serve.engine_support import unsupported_offload
from foretune.plan.serve.launching import launch
from foretune.plan.serve.request import PlanRequest

SOURCES = {
    "vllm": ("vllm/engine/arg_utils.py", "vllm/entrypoints/"),
    "sglang": ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields/"),
}
"""Engine -> its files that declare flags."""
FROZEN = Path(__file__).resolve().parents[1] / "tests" / "plan" / "serve" / "flags"
SYSTEMS = ("h100_sxm", "b200_sxm")
LAYOUTS = 3
"""Layouts of each model, format and system, from the most spread."""
OFFLOADS = (Offload(4), Offload(cache_gib=20), Offload(cache_gib=20, disk_gib=100))
"""What the most spread layout also keeps outside of its GPUs."""


def main() -> None:
    """Print the table, or write the lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--commands", type=Path, help="JSON file to write: engine -> commands")
    arguments = parser.parse_args()
    rows = []
    failed = False
    written = {}
    for wheel in arguments.wheels:
        engine, version = wheel.name.split("-")[:2]
        known = flags_in(wheel, SOURCES[engine])
        if arguments.freeze:
            text = "\n".join(sorted(known)) + "\n"
            (FROZEN / f"{engine}-{version}.txt").write_text(text, encoding="utf-8")
        counts = [0, 0]
        written[engine] = list(commands(engine))
        for command in written[engine]:
            refused = flags_of(command) - known
            counts[bool(refused)] += 1
            if refused:
                print(f"{engine}: {sorted(refused)}", file=sys.stderr)
        failed |= counts[1] > 0 or version != ENGINES[engine]["version"]
        rows.append([engine, version, str(len(known)), *map(str, counts)])
    print(markdown(("engine", "version", "flags", "commands that parse", "refused"), rows))
    if arguments.commands:
        arguments.commands.write_text(json.dumps(written), encoding="utf-8")
    sys.exit(failed)


def flags_in(wheel: Path, sources: tuple[str, ...]) -> set[str]:
    """Return the long flags that a wheel's sources declare."""
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if name.startswith(sources) and name.endswith(".py"):
                for node in ast.walk(ast.parse(files.read(name))):
                    found |= declared(node)
    return found


def declared(node: ast.AST) -> set[str]:
    """Return the flags of an ``add_argument`` call, or of a field with `A` as its annotation."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
        return {flag for flag in map(text, node.args) if flag.startswith("--")}
    if not (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Subscript)
    ):
        return set()
    options = {
        keyword.arg: keyword.value
        for call in ast.walk(node.annotation)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
    }
    if getattr(node.annotation.value, "id", "") != "A" or "no_cli" in options:
        return set()
    aliases = getattr(options.get("aliases"), "elts", [])
    name = text(options.get("cli_name")) or f"--{node.target.id.replace('_', '-')}"
    return {name, *map(text, aliases)}


def text(node: ast.AST | None) -> str:
    """Return a constant's text; empty for anything else."""
    return str(node.value) if isinstance(node, ast.Constant) else ""


def commands(engine: str) -> Iterator[list[str]]:
    """Give the first command of some deployments of every model in the catalog."""
    for name in known_models():
        try:
            model = describe_model(name)
        except ForetuneError:  # some are refused with a reason
            continue
        for system in map(find_system, SYSTEMS):
            for formats in supported_formats(model, system)[:2]:
                yield from _some(model, system.name, formats, engine)


def _some(
    model: ModelDescription, system: str, formats: Formats, engine: str
) -> Iterator[list[str]]:
    node = find_system(system)
    request = PlanRequest(
        model=model,
        systems=(node,),
        gpus=8,
        workload=Workload(1024, 256),
        engine=engine,
        formats=(formats,),
    )
    found = list(candidate_deployments(request, node))[-LAYOUTS:]
    on_disk = replace(node, disk_gbps=2.0, disk_folder="/data/prefixes")
    found += [
        replace(last, system=on_disk, workload=Workload(1024, 256, prefix=512), offload=offload)
        for last in found[-1:]
        for offload in OFFLOADS
        if not unsupported_offload(offload, engine)
    ]
    for candidate in found:
        started = launch(candidate, engine, candidate.replicas)
        yield from (list(command) for command in started.commands[:1])


def flags_of(command: list[str]) -> set[str]:
    """Return a command's long flags."""
    return {word for word in command if word.startswith("--")}


if __name__ == "__main__":
    main()
