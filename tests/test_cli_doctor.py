"""`foretune doctor` and `devices`: what is there, what is missing, what the probe found."""

import io
import math
import operator
import re
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from commands import fails, run_json

import foretune.cli.doctor
import foretune.collect
import foretune.tune.doors
from foretune.cli import main
from foretune.cli.doctor import Finding
from foretune.collect.devices import Probe
from foretune.collect.dissection import Dissection, Level, MemoryCurve

pytestmark = pytest.mark.usefixtures("toy_place")


def test_doctor_and_devices(capsys, monkeypatch):
    known = run_json(capsys, "doctor", "--known")
    assert any(d["name"] == "NVIDIA H200" for d in known["devices"])
    here = run_json(capsys, "doctor")
    assert here["devices"][0]["specs"]["cores"] >= 1
    checks = here["checks"]
    assert {"versions", "kernel toy", "power meter (cpu)", "MLflow"} <= {c["what"] for c in checks}


def test_doctor_names_the_doors_into_other_tools(capsys, monkeypatch):
    def version(package):
        if package == "helion":
            return "9.9"
        raise PackageNotFoundError(package)

    monkeypatch.setattr(foretune.cli.doctor, "version", version)
    notes = {c["what"]: (c["works"], c["note"]) for c in run_json(capsys, "doctor")["checks"]}
    assert notes["inside helion"][0]
    assert notes["inside helion"][1].startswith("9.9, tested 1.5.1")
    assert not notes["inside flashinfer-python"][0]
    for package, (_, line) in foretune.cli.doctor.DOORS.items():
        assert notes[f"inside {package}"][1].endswith(line)
        for name in re.findall(r"(?:foretune\.)?((?:search\.)?\w+)\(\)", line):
            assert operator.attrgetter(name)(foretune)


def test_doctor_probes_again(capsys, monkeypatch, tmp_path):
    probes = {False: Probe({"memory_gbps": 12.5}, "busy"), True: Probe({"memory_gbps": 38.0}, "")}
    levels = Level("L1", 4.0, 1.0, 200.0, 0.0), Level("memory", math.inf, 80.0, 20.0, 0.5)
    curve = MemoryCurve((4.0, 8.0), (1.0, 80.0), (200.0, 20.0), levels)
    found = Dissection(curve, {"fp32 x 256": 9.5}, 120.0, {"0-1": 50.0}, 1, 2, 3)
    monkeypatch.setattr(
        "foretune.collect.devices.probe_cpu", lambda refresh=False, **_: probes[refresh]
    )
    monkeypatch.setattr("foretune.collect.dissection.dissect_cpu", lambda progress: found)
    assert main(["doctor", "--probe", "--plot", str(tmp_path / "new" / "levels.png")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"memory_gbps\W+12\.5\W+38\.0", out)
    assert re.search(r"memory +- +- +80.0 +20.0 +two rounds differ by 50%", out)
    assert "L1: smaller than the system reports" in out
    assert (tmp_path / "new" / "levels.png").exists()
    now = run_json(capsys, "doctor", "--probe")
    assert now["before"] == {"specs": {"memory_gbps": 12.5}, "disturbance": "busy"}
    assert now["now"]["specs"] == {"memory_gbps": 38.0}
    assert now["dissection"]["memory"]["levels"][1]["size_kib"] is None


def test_what_was_probed_is_shown_if_it_cannot_be_drawn(capsys, monkeypatch):
    curve = MemoryCurve((4.0,), (80.0,), (20.0,), (Level("memory", math.inf, 80.0, 20.0, 0.0),))
    found = Dissection(curve, {}, 120.0, {}, 1, 2, 3)
    monkeypatch.setattr("foretune.collect.devices.probe_cpu", lambda **_: Probe({}, ""))
    monkeypatch.setattr("foretune.collect.dissection.dissect_cpu", lambda progress: found)
    assert main(["doctor", "--probe", "--plot", "levels.xyz"]) == 1
    captured = capsys.readouterr()
    assert "cannot write levels.xyz" in captured.err
    assert "memory while all other cores read, ns  120.00" in captured.out


def test_doctor_says_at_once_where_it_cannot_draw(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("foretune.collect.dissection.dissect_cpu", lambda progress: 1 / 0)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib", None)
        assert "needs matplotlib" in fails(capsys, 1, "doctor", "--probe", "--plot", "levels.png")
    wrong = str(tmp_path / "file" / "levels.png")
    assert "cannot write" in fails(capsys, 1, "doctor", "--probe", "--plot", wrong)
    assert "give both" in fails(capsys, 2, "doctor", "--plot", "levels.png")


def test_an_encoding_may_lack_characters(monkeypatch):
    finding = Finding("inside kernel_tuner", True, "strategy=…")
    monkeypatch.setattr(foretune.cli.doctor, "examine", lambda: [finding])
    latin = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr("sys.stdout", latin)
    assert main(["doctor"]) == 0
    latin.flush()
    assert b"strategy=?" in latin.buffer.getvalue()


def test_extras_are_printed_as_they_are_typed(capsys, monkeypatch):
    finding = Finding("torch", False, "pip install '.[gpu]'")
    monkeypatch.setattr(foretune.cli.doctor, "examine", lambda: [finding])
    assert main(["doctor"]) == 0
    assert "'.[gpu]'" in capsys.readouterr().out
