"""The shipped table of models: where its sizes come from, and whether they add up."""

import re

import pytest

from foretune.plan.describe import shipped_rows
from foretune.plan.describe.model_catalog import describe_model
from foretune.plan.describe.names import parse_name

ROWS = {row["name"]: row for row in shipped_rows("models.csv")}
SOURCES = ("memory", "aiconfigurator-core 0.12", "transformers 5.19")
FROM_MEMORY = 0.01
FROM_FILES = 0.015
"""Relative difference from the published parameters, which are rounded."""
ROUNDING_OF_NAMES = 0.31
"""Gemma-2-2b has 2.61 billion weights."""


def sizes_of_aliases():
    """Return the billions that the names of relatives say, by name."""
    found = {}
    for row in shipped_rows("model_aliases.csv"):
        words = parse_name(row["alias"]).sizes
        sizes = [float(word[:-1]) for word in words if re.fullmatch(r"\d+(\.\d+)?b", word)]
        if sizes:
            found[row["alias"]] = max(sizes)
    return found


SIZE_OF_ALIAS = sizes_of_aliases()


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


@pytest.mark.parametrize("alias", SIZE_OF_ALIAS)
def test_shipped_relative_has_the_size_in_its_name(alias):
    model = describe_model(alias)
    counts = (model.parameters(), model.parameters() + model.encoder_weights)
    off = min(abs(count / 1e9 / SIZE_OF_ALIAS[alias] - 1.0) for count in counts)
    assert off <= ROUNDING_OF_NAMES


def test_shipped_relative_without_an_encoder_reads_no_images():
    assert not describe_model("google/medgemma-27b-text-it").images
    assert describe_model("google/gemma-3-27b-it").images
