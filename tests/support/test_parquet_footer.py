"""Sizes in the footers of Parquet files: `foretune/support/parquet_footer.py`."""

import random
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spoiling import spoil_bytes

from foretune.support.parquet_footer import decoded_size


@pytest.fixture
def path(tmp_path):
    table = pa.table(
        {
            "kernel": ["gemm"] * 50,
            "time_ms": np.linspace(1, 2, 50),
            "time_ms_samples": [[1.0] * n for n in range(50)],
            "ok": [True, None] * 25,
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=20)
    return tmp_path / "x.parquet"


def test_decoded_size_equals_sizes_that_arrow_reads(path):
    metadata = pq.read_metadata(path)
    chunks = [metadata.row_group(i).column(j) for i in range(3) for j in range(4)]
    values, size = decoded_size(path)
    assert values == sum(chunk.num_values for chunk in chunks)
    assert size == sum(chunk.total_uncompressed_size for chunk in chunks)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 3, struct.pack("<I", 99) + b"PAR1"])
def test_decoded_size_without_footer_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="footer"):
        decoded_size(path)


def test_decoded_size_damaged_footer_is_read_or_refused(path):
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    body = data[: -8 - size]
    footer = data[-8 - size : -8]
    refused = 0
    for seed in range(500):
        new = spoil_bytes(footer, random.Random(seed))
        path.write_bytes(body + new + struct.pack("<I", len(new)) + b"PAR1")
        try:
            decoded_size(path)
        except ValueError:
            refused += 1
    assert 0 < refused < 500


def test_decoded_size_list_longer_than_the_file_is_refused(path):
    """Their items would take no bytes: the length alone would take years."""
    for item in (b"\x01", b"\x03", b"\x07"):  # booleans, bytes, doubles
        many = b"\xff" * 8 + b"\x7f"
        footer = b"\x29" + (0xF0 | item[0]).to_bytes(1, "little") + many + b"\x00"
        path.write_bytes(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")
        with pytest.raises(ValueError, match="its footer is damaged"):
            decoded_size(path)
