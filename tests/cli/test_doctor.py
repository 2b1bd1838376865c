"""`foretune doctor` and `devices`: what is there, what is missing, what the probe found."""

import io
import operator
import re
from importlib.metadata import PackageNotFoundError

import pytest
from commands import run_json

import foretune.cli.doctor
import foretune.collect
import foretune.tune.doors
from foretune.cli import main
from foretune.cli.doctor import Finding

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


def test_doctor_prints_in_narrow_encoding(monkeypatch):
    finding = Finding("inside kernel_tuner", True, "strategy=…")
    monkeypatch.setattr(foretune.cli.doctor, "examine", lambda: [finding])
    latin = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr("sys.stdout", latin)
    assert main(["doctor"]) == 0
    latin.flush()
    assert b"strategy=?" in latin.buffer.getvalue()


def test_doctor_prints_extras_as_they_are_typed(capsys, monkeypatch):
    finding = Finding("torch", False, "pip install '.[gpu]'")
    monkeypatch.setattr(foretune.cli.doctor, "examine", lambda: [finding])
    assert main(["doctor"]) == 0
    assert "'.[gpu]'" in capsys.readouterr().out
