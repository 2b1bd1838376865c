"""Checks that a kernel's cost and features of columns are those of its single rows."""

import numpy as np
import pytest


def check_columns(kernel, problems, configs):
    """Compare one row at a time with all rows at once; return the features of all rows."""
    rng = np.random.default_rng(1)
    rows = [(p, c) for p in problems for c in kernel.space(p).sample(configs, rng)]
    columns = [
        {name: np.array([row[i][name] for row in rows]) for name in rows[0][i]} for i in (0, 1)
    ]
    cores = np.resize([132.0, 80.0, np.nan], len(rows))
    many = kernel.cost(*columns)
    many_derived = kernel.derived(*columns, {"cores": cores})
    dtypes = np.broadcast_to(many.dtype, len(rows))
    for i, row in enumerate(rows):
        one = kernel.cost(*row)
        derived = kernel.derived(*row, {"cores": cores[i]})
        assert float(one.flops) == pytest.approx(many.flops[i])
        assert float(one.bytes_moved) == pytest.approx(many.bytes_moved[i])
        assert one.dtype == dtypes[i]
        assert derived.keys() == many_derived.keys()
        for name, value in derived.items():
            assert float(value) == pytest.approx(float(many_derived[name][i])), name
    for name, values in {"flops": many.flops, "bytes": many.bytes_moved, **many_derived}.items():
        assert np.shape(values) == (len(rows),), name
        assert np.all(np.isfinite(values) & (values >= 0)), name
    assert kernel.derived(*rows[0], {}).keys() == many_derived.keys()
    return many_derived
