"""How many public model names are known to plans, and GPUs that people ask for.

Run: ``python benchmarks/plan_names.py [--transformers FOLDER] [--rows]``. The first names are those
of ``model_names.txt``: recipes, documentation and quantized copies. The second ones are those of
repositories that transformers' sources mention for their decoder families, whatever their age; the
folder is that of the package, by default the installed one.

A name is planned, refused for what is not planned of its model, or unknown: then a plan asks for a
folder or a ``config.json``, and may name relatives of other sizes or releases. ``--unknown`` lists
these. The GPUs are those of public requests. ``--rows`` lists the shipped models with the source of
their sizes, and their parameters beside the published ones.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from plan_families import decoder_families

from foretune.errors import ForetuneError, UnknownName
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.catalog import resolve_system
from foretune.plan.describe.model_catalog import describe_model

NAMES = Path(__file__).with_name("model_names.txt")
NAME = re.compile(
    r"(?:from_pretrained\(\s*|checkpoint=|model_id = )[\"']([A-Za-z0-9_-]+/[A-Za-z0-9._-]+)[\"']"
)
MADE_FOR_TESTS = re.compile(
    r"(?i)tiny|random|internal-testing|dummy|^your|username|vision|-mm-|embed"
)
"""Names of models for tests, and of models that generate no text."""

MAX_OFF = 0.01
"""Relative difference of parameters above which a row is named."""

OUTCOMES = ("planned", "refused", "unknown, relatives named", "unknown")

GPUS = (
    *("RTX 3060", "RTX 3080", "RTX 3090", "RTX 4060 Ti", "RTX 4070", "RTX 4080", "RTX 4090"),
    *("RTX 5070 Ti", "RTX 5080", "RTX 5090", "RTX A4000", "RTX A5000", "RTX A6000"),
    *("RTX 6000 Ada", "RTX PRO 6000", "T4", "V100", "A10", "A30", "A40", "A100 40GB"),
    *("A100 80GB PCIe", "L4", "L40", "L40S", "H20", "H100 PCIe", "H100 NVL", "GH200", "GB10"),
    *("MI210", "MI250X", "MI300X", "RX 7900 XTX"),
)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unknown", action="store_true")
    parser.add_argument("--transformers", type=Path)
    parser.add_argument("--rows", action="store_true")
    given = parser.parse_args()
    _print_rows(every=given.rows)
    _print_gpus()
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    public = [line for line in lines if not line.startswith("#")]
    _print_outcomes("public names", public, list_unknown=given.unknown)
    folder = given.transformers or _installed()
    if folder is None:
        print("names skipped: install transformers, or give --transformers FOLDER")
        return
    models = folder / "models"
    families = decoder_families((models / "auto" / "modeling_auto.py").read_text(encoding="utf-8"))
    names = {
        name
        for path in models.glob("*/*.py")
        if path.parent.name in families
        for name in NAME.findall(path.read_text(encoding="utf-8"))
        if not MADE_FOR_TESTS.search(name)
    }
    _print_outcomes("names in the sources of transformers", names, list_unknown=given.unknown)


def _print_rows(*, every: bool) -> None:
    """Print how many shipped models have which source, and how far their parameters are off."""
    sources: Counter[str] = Counter()
    off: list[float] = []
    for row in shipped_rows("models.csv"):
        model = describe_model(row["name"])
        published = float(row["published"])
        # A card may also count the encoder of images, or the layers that draft tokens.
        decoder = model.parameters()
        drafting = model.drafting_layers * decoder / model.layers
        counts = (decoder, decoder + model.encoder_weights, decoder + drafting)
        differences = [count / 1e9 / published - 1.0 for count in counts]
        difference = min(differences, key=abs)
        sources[row["source"]] += 1
        off.append(abs(difference))
        if every or abs(difference) > MAX_OFF:
            print(f"| {row['name']} | {row['source']} | {published:g} | {difference:+.1%} |")
    listed = ", ".join(f"{count} {source}" for source, count in sources.most_common())
    mean = sum(off) / len(off)
    print(f"{len(off)} shipped models: {listed}")
    print(f"their parameters are {mean:.2%} off on average, {max(off):.1%} at most")


def _print_outcomes(title: str, names: Iterable[str], *, list_unknown: bool) -> None:
    """Print how many names are planned, refused, or unknown with and without relatives."""
    outcomes = {name: _outcome(name) for name in sorted(names)}
    print(f"\n{len(outcomes)} {title}")
    for outcome in OUTCOMES:
        count = sum(found == outcome for found in outcomes.values())
        print(f"| {outcome} | {count} | {count / len(outcomes):.0%} |")
    if list_unknown:
        print(*(name for name, outcome in outcomes.items() if outcome in OUTCOMES[2:]), sep="\n")


def _installed() -> Path | None:
    """Return the folder of the installed transformers, without importing it."""
    found = find_spec("transformers")
    return Path(found.origin).parent if found is not None and found.origin else None


def _outcome(name: str) -> str:
    try:
        describe_model(name)
    except UnknownName as e:
        has_relatives = "did you mean" in str(e) or "in other sizes" in str(e)
        return OUTCOMES[2] if has_relatives else OUTCOMES[3]
    except ForetuneError as e:
        return OUTCOMES[3] if "unknown model" in str(e) else OUTCOMES[1]
    return OUTCOMES[0]


def _print_gpus() -> None:
    known = 0
    for name in GPUS:
        try:
            system = resolve_system(name)
        except ForetuneError as e:
            print(f"  {name}: {e}")
            continue
        known += 1
        print(f"| {name} | {system.device.name} | {system.memory_gib:.0f} GiB |")
    print(f"{known} of {len(GPUS)} GPUs are known")


if __name__ == "__main__":
    main()
