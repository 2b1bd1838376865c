"""Predictors shipped with Foretune, and the choice of one for a kernel and a device."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from foretune.device import Device
from foretune.errors import PredictorError
from foretune.models.guides.guide import TrainedGuide
from foretune.models.guides.request import PredictorRequest
from foretune.support.files import read_json, translate_read_errors

if TYPE_CHECKING:
    from foretune.models.predictor import Predictor

SHIPPED = Path(__file__).parents[1] / "shipped"
PRETRAINED_CARD = "card.json"
IDENTITY_SPECS = ("cores", "l1_kib", "l2_kib", "l3_kib", "vector_bits")
"""Specs that must be equal on two devices of one name, if both are known."""


class NotShipped(PredictorError):
    """No shipped predictor fits; the message says why."""


@dataclass(frozen=True)
class Pretrained:
    """Description of a predictor shipped in the folder ``KERNEL/TABLE``, trained on that table.

    It matches if the kernel's code has the same hash, and the device the same name, architecture
    and sizes (`IDENTITY_SPECS`), because a virtual machine's name says little. Compiler and library
    versions may differ. ``source`` is the hash of the measured code, ``specs`` are the device's,
    ``provisional`` is the reason if it is provisional, and ``held_out`` has its scores on held-out
    problems.
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
        """Return the predictor's folder below ``root``."""
        return root / self.kernel / self.table

    def differences(self, source: str, device: Device) -> list[str]:
        """Return the differences from that code and device, the most serious last."""
        found = []
        for spec in IDENTITY_SPECS:
            size = self.specs.get(spec)
            mine = device.specs.get(spec)
            if size is not None and mine is not None and size != mine:
                found.append(f"{self.table} is for {size:g} {spec}, this device has {mine:g}")
        here = (device.name, device.architecture)
        if here != (self.device, self.architecture):
            there = _device_text((self.device, self.architecture))
            found.append(f"{self.table} was measured on {there}, this is {_device_text(here)}")
        if source != self.source:
            found.append(f"{self.table} was measured with other code of {self.kernel}")
        return found


def find_pretrained(request: PredictorRequest) -> TrainedGuide:
    """Return the most similar shipped predictor of the requested kernel.

    One of other code and of another device is not similar. Raises NotShipped if there is none;
    PredictorError or RunTableError if it is damaged, or another version wrote it.
    """
    from foretune.models.predictor import Predictor

    reasons = []
    cards = list(read_cards(request.kernel)) if request.kernel.isidentifier() else []
    for card in sorted(cards, key=lambda card: _mismatch_rank(card, request)):
        if card.source != request.source_hash and card.device != request.device.name:
            # only the name is the same, e.g. a Triton function called matmul
            reasons.append(f"{card.table} was measured with other code, on {card.device}")
            continue
        found = Predictor.load(card.folder(SHIPPED))
        if missing := request.missing_targets(found):
            reasons.append(f"{card.table} has no {', '.join(missing)}")
            continue
        differences = card.differences(request.source_hash, request.device)
        return TrainedGuide(found, request.device, mismatch="; ".join(differences), shipped=True)
    raise NotShipped(
        f"no shipped predictor of {request.kernel} fits: "
        + ("; ".join(reasons) or "there is none for this kernel")
    )


def load_pretrained(kernel: str, device: str | None = None) -> "Predictor":
    """Return a kernel's shipped predictor: that of a device of this name, else the first.

    Raises NotShipped if there is none; for damaged ones see `find_pretrained`.
    """
    found = read_cards(kernel) if kernel.isidentifier() else ()
    cards = sorted(found, key=lambda card: card.device != device)
    if not cards:
        kernels = sorted({card.kernel for card in read_cards("*")})
        raise NotShipped(f"no predictor of {kernel} is shipped: choose from {', '.join(kernels)}")

    from foretune.models.predictor import Predictor

    return Predictor.load(cards[0].folder(SHIPPED))


def _mismatch_rank(card: Pretrained, request: PredictorRequest) -> tuple[bool, bool, bool, int]:
    """Return a sort key of the differences: code, device, architecture, sizes."""
    device = request.device
    return (
        card.source != request.source_hash,
        card.device != device.name,
        card.architecture != device.architecture,
        len(card.differences(request.source_hash, device)),
    )


def read_cards(kernel: str) -> Iterator[Pretrained]:
    """Yield the cards of a kernel's shipped predictors; ``*`` is any kernel."""
    for path in sorted(SHIPPED.glob(f"{kernel}/*/{PRETRAINED_CARD}")):
        with translate_read_errors(path, PredictorError, "is damaged ({}): install Foretune again"):
            card = Pretrained(**read_json(path))
        if (card.kernel, card.table) != (path.parents[1].name, path.parent.name):
            raise PredictorError(
                f"{path} describes {card.kernel}, {card.table}: it is in the wrong folder"
            )
        yield card


def _device_text(device: tuple[str, str]) -> str:
    name, architecture = device
    return f"{name} ({architecture})" if architecture else name
