"""What a plan is asked for: one object, checked when it is made.

`foretune.plan.plan` answers a request. ``dataclasses.replace`` varies one, and checks it again.
"""

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

from foretune.errors import UsageError
from foretune.plan.describe.accuracy import AccuracyResult
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Offload, Speculation, Workload
from foretune.plan.describe.system import System
from foretune.plan.serve.engine_support import unsupported_offload
from foretune.plan.serve.requirements import Requirements

if TYPE_CHECKING:
    from foretune.plan.serve.layer_formats import LayerFormats

MAX_LISTED_SYSTEMS = 3
"""The title of a request with more systems than this counts them."""
MAX_MIXED_SYSTEMS = 4
"""Maximum systems that are paired for prompts and answers: pairs grow with their square."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A model to serve, the GPUs to choose from, the load, and what may vary.

    Attributes:
        model: the model to serve.
        systems: the GPU systems to choose from.
        gpus: number of GPUs; smaller layouts are replicated.
        workload: request lengths.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        requirements: limits and goal; by default, the highest throughput without limits.
        formats: number formats to try; None tries those that the GPUs support.
        caches: KV-cache formats to combine with every weight format; empty takes the usual ones.
            They are not used if ``formats`` are given.
        rate: requests per second, arriving at random: plans the fewest replicas that meet the
            requirements. None plans every number of requests in flight.
        pools: also try separate prefill workers.
        speculation: how tokens are drafted; None drafts none.
        offload: upper limits on weights and prefixes in host memory and on disk.
        accuracy: measured quality of formats; None takes the published values.
        layer_formats: assignments of formats to layers, whose mixtures are among ``formats``.

    Raises:
        UsageError: two options cannot be combined, the engine cannot offload, or the model has no
            layers that draft.
    """

    model: ModelDescription
    systems: tuple[System, ...]
    gpus: int
    workload: Workload
    engine: str = "vllm"
    requirements: Requirements = Requirements()  # noqa: RUF009  # immutable
    formats: tuple[Formats, ...] | None = None
    caches: tuple[str, ...] = ()
    rate: float | None = None
    pools: bool = False
    speculation: Speculation | None = None
    offload: Offload = Offload()  # noqa: RUF009  # immutable
    accuracy: tuple[AccuracyResult, ...] | None = None
    layer_formats: "tuple[LayerFormats, ...]" = ()

    def __post_init__(self) -> None:
        if self.pools:
            self._check_pools()

        if reason := unsupported_offload(self.offload, self.engine):
            raise UsageError(reason)
        if self.offload.cache_gib and not self.workload.prefix:
            raise UsageError(
                "--offload cache=GIB keeps prefixes in host memory: add --prefix TOKENS"
            )
        if self.offload.disk_gib:
            self._check_disk()

        if self.speculation is not None:
            self.speculation.drafter(self.model)  # raises if the model has none

    def __str__(self) -> str:
        names = " or ".join(system.name for system in self.systems)
        if len(self.systems) > MAX_LISTED_SYSTEMS:
            names = f"one of {len(self.systems)} systems"
        return f"{self.model.name} on {self.gpus} × {names}, {self.engine}"

    @property
    def mixed_systems(self) -> list[tuple[System, System]]:
        """Pairs of systems to compute prompts on one and answers on the other.

        Their caches must have one layout, so both are of one maker.
        """
        if not self.pools or len(self.systems) > MAX_MIXED_SYSTEMS:
            return []
        pairs = permutations(self.systems, 2)
        return [
            (reading, decoding)
            for reading, decoding in pairs
            if _maker(reading) == _maker(decoding)
        ]

    def _check_pools(self) -> None:
        """Raise UsageError for options that cannot be combined with separate prefill workers."""
        if self.rate is not None:
            raise UsageError("pools are sized for one load: leave out --pools or --rate")
        if self.speculation is not None:
            raise UsageError("pools cannot draft tokens: leave out --pools or --speculative")
        if self.offload:
            raise UsageError(
                "pools cannot be planned with offloading: leave out --pools or --offload"
            )

    def _check_disk(self) -> None:
        """Raise UsageError if prefixes on disk lack what they need."""
        if not self.offload.cache_gib:
            raise UsageError(
                "prefixes on disk come through a cache in host memory: add --offload cache=GIB"
            )
        unknown = [system.name for system in self.systems if not system.disk_gbps]
        if unknown:
            raise UsageError(
                f"the rate of {unknown[0]}'s disk is unknown: add --link disk=GB/S, or "
                "--link disk=FOLDER to measure a folder of this machine"
            )


def _maker(system: System) -> str:
    """Return who makes a system's GPUs; a CPU is a maker of its own."""
    device = system.device
    return device.name.split()[0] if device.kind == "gpu" else device.name
