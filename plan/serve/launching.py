"""How to start a planned deployment: commands, the checkpoint to serve, and notes.

`commands` has the commands of each engine, `engine_support` what an engine cannot run.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from foretune.errors import UnknownName
from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.formats import checkpoint_formats
from foretune.plan.serve.commands.server import EngineCommands
from foretune.plan.serve.commands.sglang import sglang_commands
from foretune.plan.serve.commands.trtllm import trtllm_commands
from foretune.plan.serve.commands.vllm import replicas_per_server, vllm_commands
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.engine_support import unsupported

LAUNCHERS: dict[str, Callable[[Deployment, str, str, int], EngineCommands]] = {
    "vllm": vllm_commands,
    "sglang": sglang_commands,
    "trtllm": trtllm_commands,
}
"""Engine -> function that returns its commands."""
CHECKPOINT_PLACEHOLDER = "CHECKPOINT_IN"
"""Start of the name of a checkpoint that must be created or found first."""
PROXY_NOTES = (
    "route requests through a proxy for prefill-decode disaggregation:",
    "vLLM's toy_proxy_server.py (tests/v1/kv_connector/nixl_integration), or llm-d",
)
CACHE_SCALE_NOTE = (
    "the checkpoint needs scales for an NVFP4 cache: NVIDIA Model Optimizer, kv_cache_quant"
)


@dataclass(frozen=True)
class Launch:
    """How to start a deployment with one engine, with a command per server or router.

    Commands are split into words. Words with ``=`` before the program set its environment.
    """

    commands: Sequence[Sequence[str]]
    files: dict[str, str]  # name -> text of the files that commands read
    notes: Sequence[str]  # what else to do
    version: str = ""  # the engine's name and the version that the commands are for
    unsupported: str = ""  # why this engine cannot run the deployment; empty if it can

    def __str__(self) -> str:
        if self.unsupported:
            return f"# {self.unsupported}"
        notes = (f"for {self.version}", *self.notes)
        lines = ["# " + " ".join(note.split()) for note in notes]
        for name, text in self.files.items():
            lines.append(f"cat > {name} <<'END'\n{text}END")
        lines += map(_command_line, self.commands)
        return "\n".join(lines)


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint to serve.

    Attributes:
        name: a name in capitals is a placeholder for a checkpoint to create or find first.
        quantization: the engine's option to quantize it; empty if it is served as published.
        note: how to create it; empty if it exists.
    """

    name: str
    quantization: str = ""
    note: str = ""

    @property
    def is_placeholder(self) -> bool:
        """Whether the checkpoint must be created or found first."""
        return self.name.startswith(CHECKPOINT_PLACEHOLDER)


def launch_commands(deployment: Deployment, replicas: int = 1) -> dict[str, str]:
    """Return the shell text for each engine: ``vllm``, ``sglang`` and ``trtllm``."""
    return {engine: str(launch(deployment, engine, replicas)) for engine in LAUNCHERS}


def launch(deployment: Deployment, engine: str, replicas: int = 1) -> Launch:
    """Return how to start a deployment with an engine; raises UnknownName."""
    if engine not in LAUNCHERS:
        raise UnknownName("engine", engine, LAUNCHERS)
    if reason := unsupported(deployment, engine):
        return Launch(commands=(), files={}, notes=(), unsupported=reason)

    per_server = replicas_per_server(deployment, replicas) if engine == "vllm" else 1
    served = checkpoint(deployment, engine)
    started = LAUNCHERS[engine](deployment, served.name, served.quantization, per_server)

    notes = [served.note] if served.note else []
    if engine == "trtllm" and deployment.formats.kv == "nvfp4":
        notes.append(CACHE_SCALE_NOTE)
    notes += _placement_notes(deployment, servers=replicas // per_server)
    if engine == "vllm" and deployment.pools:
        notes += PROXY_NOTES
    return Launch(
        commands=started.commands,
        files=started.files,
        notes=notes,
        version="{name} {version}".format(**ENGINES[engine]),
    )


def checkpoint(deployment: Deployment, engine: str) -> Checkpoint:
    """Return the checkpoint to serve: published, quantized when it is loaded, or a new one."""
    model = deployment.model
    formats = deployment.formats
    published = checkpoint_formats(model)
    if (formats.weights, formats.moe) == (published.weights, published.moe):
        return Checkpoint(model.name)

    # A CPU engine converts 16 bits to single precision while loading (--dtype).
    if formats.weights == formats.moe == "fp32":
        return Checkpoint(model.name)

    # Engines can quantize a checkpoint in 16 bits to some formats when they load it.
    is_unquantized = published.weights == "bf16" and published.moe == "bf16"
    if is_unquantized and formats.weights == formats.moe:
        quantization = ENGINES[engine]["online_quantization"].get(formats.weights)
        if quantization:
            return Checkpoint(model.name, quantization=quantization)

    # Others must be quantized before, or found.
    kinds = list(dict.fromkeys((formats.weights, formats.moe)))
    name = re.sub(r"\W+", "_", "_".join([CHECKPOINT_PLACEHOLDER, *kinds])).upper()
    description = f"{formats.weights} with experts in {formats.moe}" if len(kinds) > 1 else kinds[0]
    tool = "GPTQModel" if "int3_wo" in kinds else "llm-compressor or NVIDIA Model Optimizer"
    return Checkpoint(name, note=f"{name}: {model.name}, quantized to {description} with {tool}")


def _command_line(words: Sequence[str]) -> str:
    """Return a command as a line of a shell; assignments before the program stay unquoted."""
    program = next(i for i, word in enumerate(words) if "=" not in word)
    return " ".join([*words[:program], shlex.join(words[program:])])


def _placement_notes(deployment: Deployment, servers: int) -> Iterator[str]:
    """Yield how to place ``servers`` on nodes and GPUs."""
    node = deployment.system.gpus_per_node
    gpus = deployment.layout.gpus
    if gpus > node:
        yield f"{gpus} GPUs span {ceil(gpus / node)} nodes: use the engine's multi-node launcher"
    if servers > 1:
        yield (
            f"start {servers} servers behind a load balancer, each with different GPUs and ports "
            "(CUDA_VISIBLE_DEVICES, --port)"
        )
    elif deployment.pools:
        yield "give each server different GPUs (CUDA_VISIBLE_DEVICES)"
