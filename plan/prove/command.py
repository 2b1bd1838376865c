"""Turns settings into the commands that start them: a plan's own command, or a user's.

A user's command has placeholders for what Foretune sets: ``llama-server --port {port} --parallel
{requests}``. A knob whose placeholder is missing is not searched.
"""

import shlex
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from foretune.errors import OutputError, UsageError
from foretune.plan.prove import setting as knobs
from foretune.plan.prove.server import HOST, ServerCommand
from foretune.plan.prove.setting import Setting
from foretune.plan.serve.commands.server import PORT
from foretune.plan.serve.commands.vllm import (
    CPU_CACHE_VARIABLE,
    CPU_THREADS_VARIABLE,
    core_list,
)
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.launching import checkpoint, launch
from foretune.values import Value

PORT_FIELD = "port"
CONTEXT_FIELD = "context"
CACHE_TOKENS_FIELD = "cache_tokens"
"""Placeholders that are no knobs: the port, tokens of the longest request, tokens of the cache."""
VALUE_KNOBS = (knobs.REQUESTS, knobs.STEP_TOKENS, knobs.CACHE_GIB, knobs.THREADS)
"""Knobs that a user's command can have."""
FIELDS = (PORT_FIELD, CONTEXT_FIELD, CACHE_TOKENS_FIELD, *VALUE_KNOBS)

SWITCHES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "vllm": {
        knobs.CHUNKED: ("", "--no-enable-chunked-prefill"),
        knobs.PREFIX_CACHE: ("--enable-prefix-caching", "--no-enable-prefix-caching"),
        knobs.GRAPHS: ("", "--enforce-eager"),
    },
    "sglang": {
        knobs.PREFIX_CACHE: ("", "--disable-radix-cache"),
        knobs.GRAPHS: ("", "--disable-cuda-graph"),
    },
    "trtllm": {},
}
"""Engine -> knob -> its flags if it is on, and off."""
SHARE_FLAGS = {"vllm": "--gpu-memory-utilization"}
"""Engine -> flag of the share of memory that it fills."""
PORT_FLAG = "--port"
HOST_FLAG = "--host"
OPEN_ENGINES = ("vllm",)
"""Engines that other machines reach unless their command says where to listen."""


class CommandMaker(Protocol):
    """Makes the command of a setting."""

    @property
    def knobs(self) -> Sequence[str]:
        """Knobs that the command can set."""

    @property
    def identity(self) -> str:
        """Text that is equal for equal servers: it names the work in the store."""

    def can_start(self, deployment: Deployment) -> bool:
        """Return whether a deployment's server can be started as it is."""

    def command(self, setting: Setting, port: int, folder: Path) -> ServerCommand:
        """Return the command that starts a setting; files that it reads are put in ``folder``."""


@dataclass(frozen=True)
class PlannedCommand:
    """The command of the plan's engine.

    Attributes:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        extra: words appended to the command.
        host: name of another machine, or empty.
        on_cpu: whether the engine runs on a CPU.
        cpus: numbers of the cores that it may use, if they do not begin with 0.
    """

    engine: str
    extra: tuple[str, ...] = ()
    host: str = ""
    on_cpu: bool = False
    cpus: tuple[int, ...] = ()

    @property
    def knobs(self) -> Sequence[str]:
        """Knobs that the engine's flags set."""
        found = [knobs.DEPLOYMENT, knobs.REQUESTS, knobs.STEP_TOKENS, *SWITCHES[self.engine]]
        if self.on_cpu:
            found = [name for name in found if name != knobs.GRAPHS]
            return [*found, knobs.CACHE_GIB, knobs.THREADS]
        return [*found, *([knobs.CACHE_SHARE] if self.engine in SHARE_FLAGS else [])]

    @property
    def identity(self) -> str:
        """The engine and the words that are always appended."""
        return shlex.join([self.engine, *self.extra])

    def command(self, setting: Setting, port: int, folder: Path) -> ServerCommand:
        """Return the plan's command with the setting's flags."""
        refusal = self.refusal(setting.deployment)
        if refusal:
            raise UsageError(refusal)
        started = launch(setting.deployment, self.engine)
        if started.files:
            self._write(started.files, folder)

        words = set_flag(started.commands[0], PORT_FLAG, str(port))
        if self.engine in OPEN_ENGINES and HOST_FLAG not in self.extra:
            words = set_flag(words, HOST_FLAG, HOST)
        if not self.on_cpu and self.engine in SHARE_FLAGS:
            words = set_flag(words, SHARE_FLAGS[self.engine], f"{setting.cache_share:g}")
        for knob, (on, off) in SWITCHES[self.engine].items():
            words = [word for word in words if word not in (on, off)]
            flag = on if _is_on(setting, knob) else off
            words += [flag] if flag else []
        if self.on_cpu:
            words = with_cpu_flags(words, setting, self.cpus)
        for name, value in setting.others:
            words = set_flag(words, name, str(value))
        files_at = folder if started.files else None
        return ServerCommand([*words, *self.extra], port=port, folder=files_at, host=self.host)

    def can_start(self, deployment: Deployment) -> bool:
        """Return whether a deployment's server can be started as it is."""
        return not self.refusal(deployment)

    def refusal(self, deployment: Deployment) -> str:
        """Return why a deployment's server cannot be started; empty if it can."""
        served = checkpoint(deployment, self.engine)
        if served.is_placeholder:
            return f"make the checkpoint first, or give --command: {served.note}"
        started = launch(deployment, self.engine)
        if started.unsupported:
            return started.unsupported
        if len(started.commands) != 1:
            return "--prove starts one server: leave --pools out"
        return ""

    def _write(self, files: Mapping[str, str], folder: Path) -> None:
        """Write the files that the command reads."""
        if self.host:
            raise UsageError(
                f"the command reads {', '.join(files)} on {self.host}: put it there and give "
                "--command"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error


@dataclass(frozen=True)
class UserCommand:
    """A command with placeholders, see `FIELDS`; raises UsageError for others."""

    template: str
    extra: tuple[str, ...] = ()
    host: str = ""
    words: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        try:
            words = tuple(shlex.split(self.template))
            unknown = sorted(self._fields(words) - set(FIELDS))
        except ValueError as error:
            raise UsageError(f"--command {self.template}: {error}") from error
        if not words:
            raise UsageError("--command is empty: give the command that starts the server")
        if unknown:
            raise UsageError(
                f"--command has {', '.join(f'{{{name}}}' for name in unknown)}: placeholders are "
                f"{', '.join(f'{{{name}}}' for name in FIELDS)}"
            )
        object.__setattr__(self, "words", words)

    @property
    def knobs(self) -> Sequence[str]:
        """Knobs whose placeholders the command has."""
        fields = self._fields(self.words)
        found = [name for name in VALUE_KNOBS if name in fields]
        needs_size = CACHE_TOKENS_FIELD in fields and knobs.CACHE_GIB not in found
        return [*found, *([knobs.CACHE_GIB] if needs_size else [])]

    @property
    def identity(self) -> str:
        """The template."""
        return shlex.join([*self.words, *self.extra])

    @property
    def fixed_port(self) -> int | None:
        """The port of a command without a placeholder for it; None if it has one."""
        if PORT_FIELD in self._fields(self.words):
            return None
        for i, word in enumerate(self.words[:-1]):
            if word == PORT_FLAG and self.words[i + 1].isdigit():
                return int(self.words[i + 1])
        return PORT

    def can_start(self, deployment: Deployment) -> bool:
        """Return True: a user's command has its formats and layout already."""
        return True

    def command(self, setting: Setting, port: int, folder: Path) -> ServerCommand:
        """Return the command with a setting's values."""
        values: dict[str, Value] = {
            PORT_FIELD: port,
            CONTEXT_FIELD: setting.deployment.longest_context,
            CACHE_TOKENS_FIELD: int(setting.cache_tokens),
            knobs.REQUESTS: setting.requests,
            knobs.STEP_TOKENS: setting.step_tokens,
            knobs.CACHE_GIB: f"{setting.cache_gib or 0:g}",
            knobs.THREADS: setting.threads,
        }
        words = [word.format(**values) for word in self.words]
        for name, value in setting.others:
            words = set_flag(words, name, str(value))
        return ServerCommand([*words, *self.extra], port=port, host=self.host)

    @staticmethod
    def _fields(words: Sequence[str]) -> set[str]:
        """Return the names of the placeholders of some words."""
        formatter = string.Formatter()
        return {
            name for word in words for _, name, _, _ in formatter.parse(word) if name is not None
        }


def with_cpu_flags(words: Sequence[str], setting: Setting, cpus: Sequence[int] = ()) -> list[str]:
    """Return vLLM's command with the size of a CPU's cache and the cores of its threads.

    ``cpus`` are the numbers of usable cores: a process may be kept from the first ones.
    """
    cache_gib = setting.cache_gib or 1.0
    if cache_gib != int(cache_gib):
        raise UsageError(f"{knobs.CACHE_GIB}={cache_gib:g}: vLLM takes whole GiB, such as 1")
    variables = {CPU_CACHE_VARIABLE: f"{cache_gib:g}"}
    if setting.threads:
        usable = list(cpus) or list(range(setting.threads))
        variables[CPU_THREADS_VARIABLE] = core_list(usable[: setting.threads])
    program = [word for word in words if word.partition("=")[0] not in variables]
    return [*(f"{name}={value}" for name, value in variables.items()), *program]


def set_flag(words: Sequence[str], flag: str, value: str) -> list[str]:
    """Return a command in which a flag has a value, in its place if it had one before."""
    changed = list(words)
    if flag in changed[:-1]:
        changed[changed.index(flag) + 1] = value
        return changed
    return [*changed, flag, value]


def _is_on(setting: Setting, knob: str) -> bool:
    """Return whether a switch is on."""
    switches = {
        knobs.CHUNKED: setting.chunked,
        knobs.PREFIX_CACHE: setting.prefix_cache,
        knobs.GRAPHS: setting.graphs,
    }
    return switches[knob]
