"""Judges all solutions in Triton of `wrong_kernels` by Triton's interpreter, and prints JSON.

Triton decides when it is imported whether it interprets, so this is a process of its own.
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import triton  # noqa: F401 - the forked processes have it
import wrong_kernels as gallery
from judged import ForkedProcess

from foretune.tune import judge as module
from foretune.tune.tasks.folder import read_task


def refusal(text):
    """Return why a solution is refused; empty if it is not."""
    with tempfile.TemporaryDirectory() as folder:
        gallery.as_trace(Path(folder), text, writes=True, language="triton", rows=(4, 3))
        with read_task(Path(folder)) as task:
            verdict = module.judge(
                task.candidate,
                task.reference,
                task.problems,
                inputs=task.inputs,
                check_only=True,
                progress=module.SILENT,
            )
    return verdict.refused


warnings.simplefilter("ignore")
module.WorkerProcess = ForkedProcess
solutions = {**gallery.WRONG_TRITON, "right": gallery.TRITON}
print(json.dumps({name: refusal(text) for name, text in solutions.items()}))
