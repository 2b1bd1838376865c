"""A set in the schema of FlashInfer Trace: one definition, one solution, two workloads."""

import json

DEFINITION = {
    "name": "scaled_rows_d8",
    "op_type": "rows",
    "axes": {"n": {"type": "var"}, "d": {"type": "const", "value": 8}},
    "inputs": {
        "x": {"shape": ["n", "d"], "dtype": "float32"},
        "factor": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "y": {"shape": ["n", "d"], "dtype": "float32"},
        "sums": {"shape": ["n"], "dtype": "float32"},
    },
    "reference": "def run(x, factor):\n    y = x * factor\n    return y, y.sum(dim=1)\n",
}
WRITES = """
import torch
from helpers import scale

def run(x, factor, y, sums):
    scale(x, factor, y)
    torch.sum(y, dim=1, out=sums)
"""
HELPERS = "import torch\n\ndef scale(x, factor, y):\n    torch.mul(x, factor, out=y)\n"
SOLUTION = {
    "name": "in_place",
    "definition": "scaled_rows_d8",
    "author": "somebody",
    "spec": {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "main.py::run",
        "destination_passing_style": True,
    },
    "sources": [{"path": "main.py", "content": WRITES}, {"path": "helpers.py", "content": HELPERS}],
}


def workload(n, name="w", **inputs):
    """Return a line of JSON: a workload of ``n`` rows, whose factor is 3."""
    inputs = {"x": {"type": "random"}, "factor": {"type": "scalar", "value": 3.0}, **inputs}
    record = {"axes": {"n": n}, "inputs": inputs, "uuid": f"{name}{n}"}
    return json.dumps({"definition": "scaled_rows_d8", "workload": record, "solution": None})


def changed(record, **changes):
    """Return a record with other fields."""
    return {**record, **changes}


def without(record, field):
    """Return a record without one field."""
    return {name: value for name, value in record.items() if name != field}


def with_spec(solution=SOLUTION, **changes):
    """Return a solution with other fields in its ``spec``."""
    return changed(solution, spec={**solution["spec"], **changes})


def with_source(content, **spec):
    """Return a solution with another ``main.py``."""
    first, *others = SOLUTION["sources"]
    return changed(with_spec(**spec), sources=[changed(first, content=content), *others])


class TraceSet:
    """The set in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.write_definition(DEFINITION)
        self.write_solution(SOLUTION)
        self.write_workloads(workload(4), workload(6))

    def write_definition(self, definition):
        """Write the definition, in place of the last one."""
        _write(self.folder / "definitions/rows/scaled.json", json.dumps(definition))

    def write_solution(self, solution, file="in_place.json"):
        """Write a solution."""
        _write(self.folder / "solutions/rows" / file, json.dumps(solution))

    def write_workloads(self, *lines):
        """Write all workloads."""
        _write(self.workloads, "\n".join(lines) + "\n")

    @property
    def workloads(self):
        """The file of workloads."""
        return self.folder / "workloads/scaled.jsonl"


def _write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
