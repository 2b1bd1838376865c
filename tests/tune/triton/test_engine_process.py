"""Servers in processes of their own: no request waits for a measurement (`toy/fake_engine.py`)."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

ENGINE = Path(__file__).parents[2] / "toy" / "fake_engine.py"
SIZES = (1000, 64, 1000, 4096)
PLUGINS = "vllm.general_plugins"
TIMEOUT_S = 300

pytestmark = pytest.mark.skipif(
    not any(plugin.name == "foretune" for plugin in entry_points(group=PLUGINS)),
    reason="needs the installed package: its entry points load the plugin",
)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a process of the engine in the folder."""

    def start(command, argument, **variables):
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FORETUNE_")
        }
        environment |= {
            "FORETUNE_STORE": str(tmp_path / "tuned.db"),
            "TRITON_CACHE_DIR": str(tmp_path / "triton"),
            "TRITON_DEFAULT_FP_FUSION": "1",
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, str(ENGINE), command, argument],
            env=environment,
            cwd=ENGINE.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def answer_of(process):
    """Return what a process printed."""
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return json.loads(out)


def test_engine_no_request_waits_before_and_after_a_warm_up(start, tmp_path):
    calls = tmp_path / "calls.jsonl"
    sizes = ",".join(map(str, SIZES))

    # An engine with stock Triton, and two ranks of one with Foretune, at the same time.
    recording = {"FORETUNE_TRITON": "4", "FORETUNE_RECORD_CALLS": str(calls)}
    stock = start("serve", "1000")
    ranks = [start("serve", sizes, **recording) for _ in range(2)]

    # Stock Triton: the first request of a problem launches the whole list.
    answer = answer_of(stock)
    assert len(answer["requests"][0]) > answer["listed"]
    # Foretune: each request launches the default, once.
    for rank in ranks:
        assert answer_of(rank)["requests"] == [[32]] * len(SIZES)

    # The warm-up measures at most four of 24 configurations of each problem, once for both ranks.
    warmed = answer_of(start("warm-up", str(calls), FORETUNE_TRITON="4"))["calls"]
    assert len(warmed) == len({*SIZES})
    assert all(call["measured"] <= 4 for call in warmed)

    # Both ranks run the choices, which are not slower than the default; a new problem does not
    # wait, either.
    ranks = [start("serve", f"{sizes},77777", FORETUNE_TRITON="4") for _ in range(2)]
    first, second = (answer_of(rank)["requests"] for rank in ranks)
    assert first == second
    assert [len(blocks) for blocks in first] == [1] * (len(SIZES) + 1)
    chosen = {call["config"]["BLOCK"] for call in warmed}
    assert {blocks[0] for blocks in first[:-1]} == chosen
    assert first[-1] == [32]
