"""Predictors that come with Foretune, and which of them may be believed here.

Each is a folder ``shipped/KERNEL/TABLE`` as `Predictor.save` writes it, trained on the shipped
table of that name, and beside it ``card.json``, which says of what. One is used where all of this
is the same, and refused otherwise:

- the kernel's name, and what identifies its code: a `Kernel`'s ``source_hash``; of a decorated
  Triton kernel that of the function and all it calls;
- the device's name and architecture, and what the system says of its size (`IDENTITY`): a virtual
  machine's name says little, and a slice of a GPU has the name of the whole;
- the versions of features and of the format, which `Predictor.load` compares.

Versions of compilers and libraries may differ: what is predicted is where a search begins, and
measurements correct it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretune.device import Device
from foretune.errors import PredictorError

if TYPE_CHECKING:
    from foretune.models.predictor import Predictor

SHIPPED = Path(__file__).parents[1] / "shipped"
CARD = "card.json"
IDENTITY = ("cores", "l1_kib", "l2_kib", "l3_kib", "vector_bits")
"""Specs in which two devices of one name must agree, as far as both are known."""

Auto = Literal["auto"]
"""The predictor that comes with Foretune, where one fits."""


class NotShipped(PredictorError):
    """No predictor that comes with Foretune fits; the message says why."""


@dataclass(frozen=True)
class Pretrained:
    """What a shipped predictor is of.

    Attributes:
        kernel: its name.
        source: identifies the code that was measured.
        device: its name.
        architecture: of the device.
        specs: of the device, by the names in `foretune.device.SPECS`.
        table: the shipped table it was trained on.
        provisional: why it must not be relied on yet; empty if it may be.
        held_out: scores on problems it was not trained on (`foretune.models.validation.metrics`).
    """

    kernel: str
    source: str
    device: str
    architecture: str
    specs: Mapping[str, float]
    table: str
    provisional: str = ""
    held_out: Mapping[str, float] = field(default_factory=dict)

    def folder(self, root: Path) -> Path:
        """Return where the predictor lies among those shipped in ``root``."""
        return root / self.kernel / self.table

    def save(self, root: Path) -> None:
        """Write the card beside the predictor, which is there already.

        Raises:
            OSError: it cannot be written.
        """
        text = json.dumps(asdict(self), indent=1) + "\n"
        (self.folder(root) / CARD).write_text(text, encoding="utf-8")

    def refused_because(self, source: str, device: Device) -> str:
        """Return why it is of no use for that code on that device; empty if it may be used."""
        if source != self.source:
            return f"{self.table} measured other code of {self.kernel}"
        here = (device.name, device.architecture)
        if here != (self.device, self.architecture):
            return f"{self.table} is of {self.device} ({self.architecture}), this is {_words(here)}"
        for spec in IDENTITY:
            there, mine = self.specs.get(spec), device.specs.get(spec)
            if there is not None and mine is not None and there != mine:
                return f"{self.table} is of {there:g} {spec}, this device has {mine:g}"
        return ""


def shipped_predictors() -> list[Pretrained]:
    """Return the cards of all predictors that come with Foretune.

    Raises:
        PredictorError: one is damaged.
    """
    return list(_cards("*"))


def find_pretrained(
    kernel: str,
    source: str,
    device: Device,
    targets: Sequence[str] = ("time_ms",),
) -> "Predictor":
    """Return the predictor that comes with Foretune for a kernel on a device.

    Args:
        kernel: its name.
        source: identifies its code.
        device: where it runs.
        targets: what must be predicted.

    Raises:
        NotShipped: none fits; the message says why.
        PredictorError, RunTableError: the one that fits is damaged, or of another version.
    """
    reasons = []
    for card in _cards(kernel) if kernel.isidentifier() else ():
        if reason := card.refused_because(source, device):
            reasons.append(reason)
            continue
        from foretune.models.predictor import Predictor

        found = Predictor.load(card.folder(SHIPPED))
        if missing := [t for t in targets if t not in found.targets_]:
            reasons.append(f"{card.table} has no {', '.join(missing)}")
            continue
        return found
    raise NotShipped(
        f"no predictor of {kernel} comes with Foretune for this: "
        + ("; ".join(reasons) or "none is of this kernel")
    )


def _cards(kernel: str) -> Iterator[Pretrained]:
    for path in sorted(SHIPPED.glob(f"{kernel}/*/{CARD}")):
        try:
            card = Pretrained(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as e:
            raise PredictorError(f"{path} is damaged ({e}): install Foretune again") from e
        if (card.kernel, card.table) != (path.parents[1].name, path.parent.name):
            raise PredictorError(f"{path} is of {card.kernel}, {card.table}: it lies elsewhere")
        yield card


def _words(device: tuple[str, str]) -> str:
    name, architecture = device
    return f"{name} ({architecture})" if architecture else name
