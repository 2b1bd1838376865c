"""The shipped table of models: where its sizes come from, and whether they add up."""

import re

import pytest

from foretune.plan.describe import shipped_rows
from foretune.plan.describe.model_catalog import describe_model
from foretune.plan.describe.names import parse_name

ROWS = {row["name"]: row for row in shipped_rows("models.csv")}
ALIASES = [row["alias"] for row in shipped_rows("model_aliases.csv")]
SOURCES = ("memory", "aiconfigurator-core 0.12", "transformers 5.19")
FROM_MEMORY = 0.01
FROM_FILES = 0.015
"""Relative difference from the published parameters, which are rounded."""
ROUNDING_OF_NAMES = 0.31
"""Gemma-2-2b has 2.61 billion weights."""


@pytest.mark.parametrize("name", ROWS)
def test_shipped_row_says_its_source_and_has_the_published_parameters(name):
    row = ROWS[name]
    assert row["source"] in SOURCES

    model = describe_model(name)
    # A card may also count the encoder of images, or the layers that draft tokens.
    decoder = model.parameters()
    drafting = model.drafting_layers * decoder / model.layers
    counts = (decoder, decoder + model.encoder_weights, decoder + drafting)
    off = min(abs(count / 1e9 / float(row["published"]) - 1.0) for count in counts)
    assert off <= (FROM_MEMORY if row["source"] == "memory" else FROM_FILES)


@pytest.mark.parametrize("alias", ALIASES)
def test_shipped_relative_has_the_size_in_its_name(alias):
    model = describe_model(alias)
    sizes = [
        float(size[:-1]) for size in parse_name(alias).sizes if re.fullmatch(r"\d+(\.\d+)?b", size)
    ]
    if not sizes:
        pytest.skip("its name has no size")
    billions = (model.parameters() + model.encoder_weights) / 1e9
    without_encoder = model.parameters() / 1e9
    off = min(abs(count / max(sizes) - 1.0) for count in (billions, without_encoder))
    assert off <= ROUNDING_OF_NAMES


def test_shipped_relative_without_an_encoder_reads_no_images():
    assert not describe_model("google/medgemma-27b-text-it").images
    assert describe_model("google/gemma-3-27b-it").images
