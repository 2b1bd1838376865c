"""Predictors that come with Foretune, and which of them may be believed here.

Each is a folder ``shipped/KERNEL/TABLE`` as `Predictor.save` writes it, trained on the shipped
table of that name, and beside it ``card.json``, which says of what. One is believed where all of
this is the same:

- what identifies the kernel's code: a `Kernel`'s ``source_hash``; of a decorated Triton kernel that
  of the function and all it calls;
- the device's name and architecture, and what the system says of its size (`IDENTITY`): a virtual
  machine's name says little, and a slice of a GPU has the name of the whole.

Where something differs, the one that differs least is a foreign guide: a search checks it by what
it measures, and trusts it as far as that bears it out. Versions of compilers and libraries may
differ: what is predicted is where a search begins, and measurements correct it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from foretune.device import Device
from foretune.errors import PredictorError
from foretune.files import read_json, translate_read_errors
from foretune.models.saved.search_predictor import PredictorRequest, SearchPredictor

SHIPPED = Path(__file__).parents[1] / "shipped"
CARD = "card.json"
IDENTITY_SPECS = ("cores", "l1_kib", "l2_kib", "l3_kib", "vector_bits")
"""Specs in which two devices of one name must agree, as far as both are known."""


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

    def differences(self, source: str, device: Device) -> list[str]:
        """Return what is not the same for that code on that device, the gravest last."""
        found = []
        for spec in IDENTITY_SPECS:
            size, mine = self.specs.get(spec), device.specs.get(spec)
            if size is not None and mine is not None and size != mine:
                found.append(f"{self.table} is of {size:g} {spec}, this device has {mine:g}")
        here = (device.name, device.architecture)
        if here != (self.device, self.architecture):
            there = _device_text((self.device, self.architecture))
            found.append(f"{self.table} is of {there}, this is {_device_text(here)}")
        if source != self.source:
            found.append(f"{self.table} measured other code of {self.kernel}")
        return found


def shipped_predictors() -> list[Pretrained]:
    """Return the cards of all predictors that come with Foretune.

    Raises:
        PredictorError: one is damaged.
    """
    return list(_cards("*"))


def find_pretrained(request: PredictorRequest) -> SearchPredictor:
    """Return the predictor that comes with Foretune for a kernel, of all the one most like it.

    Args:
        request: for what it is wanted.

    Raises:
        NotShipped: there is none of this kernel; the message says so.
        PredictorError, RunTableError: the one is damaged, or of another version.
    """
    from foretune.models.predictor import Predictor

    reasons = []
    cards = list(_cards(request.kernel)) if request.kernel.isidentifier() else []
    for card in sorted(cards, key=lambda card: _mismatch_rank(card, request)):
        found = Predictor.load(card.folder(SHIPPED))
        if missing := [t for t in request.targets if t not in found.targets_]:
            reasons.append(f"{card.table} has no {', '.join(missing)}")
            continue
        return SearchPredictor(
            found, "; ".join(card.differences(request.source_hash, request.device)), shipped=True
        )
    raise NotShipped(
        f"no predictor of {request.kernel} comes with Foretune for this: "
        + ("; ".join(reasons) or "none is of this kernel")
    )


def _mismatch_rank(card: Pretrained, request: PredictorRequest) -> tuple[bool, bool, bool, int]:
    """Return how unlike this a table is: the code, the device, its architecture, its sizes."""
    device = request.device
    return (
        card.source != request.source_hash,
        card.device != device.name,
        card.architecture != device.architecture,
        len(card.differences(request.source_hash, device)),
    )


def _cards(kernel: str) -> Iterator[Pretrained]:
    for path in sorted(SHIPPED.glob(f"{kernel}/*/{CARD}")):
        with translate_read_errors(path, PredictorError, "is damaged ({}): install Foretune again"):
            card = Pretrained(**read_json(path))
        if (card.kernel, card.table) != (path.parents[1].name, path.parent.name):
            raise PredictorError(f"{path} is of {card.kernel}, {card.table}: it lies elsewhere")
        yield card


def _device_text(device: tuple[str, str]) -> str:
    name, architecture = device
    return f"{name} ({architecture})" if architecture else name
