"""What is served and how: request lengths, offloading, speculative decoding."""

from dataclasses import dataclass, replace

from foretune.errors import ProblemError, UsageError
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, draft_formats
from foretune.plan.describe.layout import Layout, illegal_because


@dataclass(frozen=True)
class Workload:
    """Requests of one length.

    Raises ProblemError if a length is out of range.

    Attributes:
        isl: input tokens per request, including ``prefix``.
        osl: output tokens per request.
        prefix: input tokens already cached.
    """

    isl: int
    osl: int
    prefix: int = 0

    def __post_init__(self) -> None:
        if self.isl < 1 or self.osl < 1:
            raise ProblemError(f"isl={self.isl}, osl={self.osl}: both must be at least 1 token")
        if not 0 <= self.prefix < self.isl:
            raise ProblemError(
                f"prefix={self.prefix} must lie between 0 and {self.isl - 1}: "
                "at least one input token is new"
            )

    @property
    def new_tokens(self) -> int:
        """Input tokens to prefill."""
        return self.isl - self.prefix

    @property
    def last_context(self) -> int:
        """Cached tokens when a request ends."""
        return self.isl + self.osl

    @property
    def mean_context(self) -> float:
        """Cached tokens of a request halfway through its output."""
        return self.isl + self.osl / 2


@dataclass(frozen=True)
class Offload:
    """Data in host memory while a deployment serves, in GiB per GPU.

    Raises UsageError if a value is negative or not finite.

    Attributes:
        weights_gib: maximum of a GPU's layer weights; they are read in every step.
        cache_gib: cache of prefixes, fetched when a request needs them.
    """

    weights_gib: float = 0.0
    cache_gib: float = 0.0

    def __post_init__(self) -> None:
        for value in (self.weights_gib, self.cache_gib):
            if not 0 <= value < float("inf"):
                raise UsageError(f"cannot offload {value:g} GiB to host memory: give 0 or more")

    def __str__(self) -> str:
        kinds = ((self.weights_gib, "weights"), (self.cache_gib, "cached prefixes"))
        named = [f"{gib:g} GiB of {what} per GPU" for gib, what in kinds if gib]
        return " and ".join(named) or "nothing"

    def __bool__(self) -> bool:
        return self.weights_gib > 0 or self.cache_gib > 0


@dataclass(frozen=True)
class Speculation:
    """How tokens are drafted.

    Raises UsageError if a number is out of range.

    Attributes:
        drafted: tokens drafted one after the other, per request and step.
        acceptance: probability that a drafted token is accepted, given that those before were. It
            depends on model, draft and text, and must be measured.
        draft: the draft model; None uses the model's own layers.
    """

    drafted: int
    acceptance: float
    draft: ModelDescription | None = None

    def __post_init__(self) -> None:
        if self.drafted < 1:
            raise UsageError(f"{self.drafted} drafted tokens: draft at least 1")
        if not 0 <= self.acceptance < 1:
            raise UsageError(
                f"acceptance {self.acceptance:g}: give the share of accepted drafted tokens, "
                "from 0 to below 1"
            )

    def __str__(self) -> str:
        by = self.draft.name if self.draft else "the model's own layers"
        accepted = f"{100 * self.acceptance:.3g} % of them accepted"
        tokens = "1 token" if self.drafted == 1 else f"{self.drafted} tokens"
        return f"{tokens} drafted by {by}, {accepted}: {self.accepted_tokens:.3g} tokens per step"

    @property
    def accepted_tokens(self) -> float:
        """Mean tokens per request and step: accepted drafts, and one of the model.

        The mean of a capped geometric distribution (Leviathan et al., arXiv:2211.17192).
        """
        return (1.0 - self.acceptance ** (self.drafted + 1)) / (1.0 - self.acceptance)

    def drafter(self, model: ModelDescription) -> ModelDescription:
        """Return the model that drafts; raises UsageError if ``model`` has no layers for it."""
        if self.draft:
            return self.draft
        if not model.drafting_layers:
            raise UsageError(
                f"{model.name} has no layers that draft tokens: name another model: "
                "--speculative TOKENS:ACCEPTANCE:MODEL"
            )
        parts = int(model.without_mlp > 0)  # attention and MLP are separate layers
        return replace(
            model, layers=1 + parts, without_attention=parts, without_mlp=parts, dense_layers=0,
            linear=None, sliding_window=0, windowed_layers=0, windowed=None, mlp_widths=(),
            index=None if model.compressed else model.index and replace(model.index, layers=0),
            compressed=model.compressed and replace(model.compressed, ratios=((0, 1),)),
        )  # fmt: skip

    def layout(self, layout: Layout) -> Layout:
        """Return the drafter's layout for the model's ``layout``."""
        return Layout(layout.tp) if self.draft else layout

    def formats(self, formats: Formats) -> Formats:
        """Return the drafter's formats for the model's ``formats``."""
        return draft_formats(self.draft, formats) if self.draft else formats

    def illegal_because(self, layout: Layout) -> str | None:
        """Return why a layout does not allow drafting; None if it does."""
        if layout.pp > 1:
            return "pipelines do not draft tokens"
        return illegal_because(self.draft, Layout(layout.tp)) if self.draft else None

    def with_drafter(self, model: ModelDescription) -> ModelDescription:
        """Return ``model`` with the drafter loaded: its own layers, or another model."""
        if self.draft:
            return replace(model, draft_model=self.draft)
        added = model.drafting_layers
        parts = added if model.without_mlp else 0
        return replace(
            model, layers=model.layers + added + parts,
            without_attention=model.without_attention + parts,
            without_mlp=model.without_mlp + parts,
        )  # fmt: skip
