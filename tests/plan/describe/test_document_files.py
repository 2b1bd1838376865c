"""Lengths of documents to train on, in tables of others."""

import pytest

from foretune.errors import RunTableError
from foretune.plan.describe.document_files import read_document_lengths


@pytest.mark.parametrize(
    ("text", "counts", "note"),
    [
        ("seq_len,split\n100,train\n100,train\n300,eval\n", {100: 2.0, 300: 1.0}, "split"),
        ("length,count\n64,3\n128,1\n", {64: 3.0, 128: 1.0}, ""),
        ("numTokens,percent\n64,75\n128,25\n", {64: 75.0, 128: 25.0}, ""),
        ("isl,osl\n60,4\n100,28\n", {64: 0.5, 128: 0.5}, "a prompt and its answer"),
    ],
)
def test_document_lengths_are_read_from_tables(tmp_path, text, counts, note):
    file = tmp_path / "documents.csv"
    file.write_text(text)
    read = read_document_lengths(file)
    assert read.counts == counts
    assert note in " ".join(read.notes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("text\nabc\n", "count their tokens with the model's tokenizer, and write a column tokens"),
        ("size\n100\n", "no column tokens, also not as num_tokens"),
        ("tokens,length\n1,2\n", "which both are tokens"),
        ("tokens\n1.5\n", "row 1: tokens must be a whole number"),
        ("tokens,count\n5,-1\n", "row 1: count must be a number from 0 on"),
        ("tokens,share\n5,0.2\n6,0.2\n", "the shares add up to 0.4"),
        ("isl\n5\n", "no column osl"),
        ("tokens\n", "one per document, or per length"),
    ],
)
def test_documents_without_clear_lengths_are_refused(tmp_path, text, why):
    file = tmp_path / "documents.csv"
    file.write_text(text)
    with pytest.raises(RunTableError, match=why):
        read_document_lengths(file)
