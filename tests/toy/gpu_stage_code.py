"""Code that tests of benchmarks/gpu run in a process of its own: a stage, or its kernels."""

KILLED = """
import os, sys
sys.path.insert(0, {folder!r})
import stage
write, written = stage.Table.append, []
def append(self, *args, **named):
    write(self, *args, **named)
    written.append(1)
    if len(written) == {rows}:
        self._journal.write('{{"half a li')
        self._journal.flush()
        os._exit(9)
stage.Table.append = append
import {stage}
{stage}.main(sys.argv[1:])
"""
INTERPRETED = """
import json, sys
sys.path.insert(0, {folder!r})
import {module}

for number, case in enumerate({module}.{cases}()):
    problem = case.kernel.problem(case.small)
    inputs = case.kernel.make_inputs(problem)
    expected = case.kernel.reference(inputs)
    for config in (case.listed[0], case.listed[17]):
        launch = case.kernel.build(problem, config, inputs)
        case.kernel.invalidate_output(launch())
        error = case.kernel.relative_error(launch(), expected)
        limit = case.kernel.error_limit(problem, config)
        print(json.dumps([f"{{number}} {{case.kernel.name}}", str(config), error, limit]))
"""


def killed_stage(folder, stage, rows):
    """Return code that runs a stage, which ends itself in the middle of a row after ``rows``."""
    return KILLED.format(folder=str(folder), stage=stage, rows=rows)


def interpreted_kernels(folder, module, cases):
    """Return code that prints the errors of kernels: the default of each list, another tile."""
    return INTERPRETED.format(folder=str(folder), module=module, cases=cases)
