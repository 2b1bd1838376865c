"""Parquet tables read in pieces: `foretune/support/parquet.py`."""

import pyarrow as pa
import pyarrow.parquet as pq

from foretune.support.parquet import ParquetFile


def test_parquet_file_batches_and_row_groups_hold_the_table(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"time_ms": [i / 10 for i in range(50)]}), path, row_group_size=20)

    file = ParquetFile(path)

    assert file.row_group_sizes == [20, 20, 10]
    assert pa.concat_tables(file.batches(16)).equals(pq.read_table(path))
    assert file.read_row_group(2, ["time_ms"])["time_ms"].to_pylist()[-1] == 4.9
