"""Receipts: what they say, how they are verified, and what is refused."""

import copy
import dataclasses
import json
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretune.device import Device
from foretune.problem import Problem
from foretune.tune.receipt import (
    ReceiptError,
    Terms,
    check_files,
    compare_with_receipt,
    make_receipt,
    problems_of,
    read_receipt,
    terms_of,
    write_receipt,
)
from foretune.tune.results import Comparison, NoiseEstimate
from foretune.tune.tasks.folder import read_task
from foretune.tune.tasks.functions import locations_task
from foretune.tune.verdict import ProblemVerdict, Verdict

TERMS = Terms(None, 0.5)
NOISE = NoiseEstimate(0.99, 1.01, "", 0.0, 0.0)
REFUSED = Verdict("wrong: everything, on rows=20")


def verdict(low, high):
    ratio = (low * high) ** 0.5
    ruling = ProblemVerdict(
        problem=Problem(rows=20),
        against=(Comparison("reference", None, 1.0, ratio, low, high),),
        time_ms={"candidate": 1.0, "reference": ratio},
        processes=2,
        rounds=20,
        noise=NOISE,
        relative_error=1e-12,
        process_ratios={"reference": (low, high)},
    )
    return Verdict("", (ruling,))


FASTER = verdict(1.5, 1.7)
SLOWER = verdict(0.5, 0.6)
UNSURE = verdict(0.9, 1.3)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "reference.py").write_text(
        "PROBLEMS = [{'rows': 20}]\ndef inputs(rows, seed): ...\ndef sums(x): ...\n"
    )
    (folder / "candidate.py").write_text("def sums(x): ...\n")
    return folder


def receipt_of(folder, verdict=FASTER, terms=TERMS):
    with read_task(folder) as task:
        return make_receipt(task, verdict, terms, Device("CPU", "cpu"))


def test_receipt_says_what_was_judged_and_how(folder):
    receipt = receipt_of(folder, terms=Terms(1e-3, 0.2))
    assert set(receipt["task"]["files"]) == {"reference.py", "candidate.py"}
    assert problems_of(receipt) == [Problem(rows=20)]
    assert terms_of(receipt) == Terms(1e-3, 0.2)
    assert receipt["speed-up in each process, by problem and rival"] == [{"reference": [1.5, 1.7]}]
    assert receipt["verdict"]["speedup_interval"] == pytest.approx([1.5, 1.7])
    assert receipt["not detected"]


def test_receipt_is_read_as_it_was_written(folder, tmp_path):
    receipt = receipt_of(folder)
    write_receipt(tmp_path / "r.json", receipt)
    assert read_receipt(tmp_path / "r.json") == receipt


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_refused(folder, tmp_path, data):
    file = tmp_path / "r.json"
    write_receipt(file, receipt_of(folder))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    try:
        is_same = json.loads(content) == json.loads(file.read_bytes())
    except ValueError:
        is_same = False
    file.write_bytes(content)
    if is_same:  # white space outside of texts says nothing
        assert read_receipt(file)
        return
    with pytest.raises(ReceiptError):
        read_receipt(file)


def test_files_that_differ_are_refused(folder):
    receipt = receipt_of(folder)
    with read_task(folder) as task:
        check_files(receipt, task)
    with (folder / "candidate.py").open("a") as file:
        file.write(" ")
    with read_task(folder) as task, pytest.raises(ReceiptError, match=r"candidate\.py is not"):
        check_files(receipt, task)


@pytest.mark.parametrize("by_name", [False, True], ids=["folder", "functions"])
def test_receipt_has_modules_that_the_files_import(folder, by_name):
    (folder / "candidate.py").write_text("import helper\ndef sums(x): ...\n")
    (folder / "helper.py").write_text("import deeper\n")
    (folder / "deeper.py").write_text("")
    (folder / "other.py").write_text("")

    if by_name:
        names = (f"{folder / file}:sums" for file in ("candidate.py", "reference.py"))
        task = locations_task(*names, "", [Problem(rows=20)])
    else:
        with read_task(folder) as task:
            pass

    files = {"candidate.py", "reference.py", "helper.py", "deeper.py"}
    assert set(task.file_hashes()) == files | (set() if by_name else {"other.py"})


def test_receipt_is_no_file_of_its_task(folder):
    receipt = receipt_of(folder)
    write_receipt(folder / "r.json", receipt)
    (folder / "r.json.sig").write_text("signature")
    with read_task(folder) as task:
        check_files(receipt, task)


@pytest.mark.parametrize(
    ("then", "now", "outcome"),
    [
        (FASTER, FASTER, "agrees"),
        (FASTER, verdict(3.0, 4.0), "agrees"),
        (FASTER, UNSURE, "cannot tell"),
        (FASTER, SLOWER, "disagrees"),
        (FASTER, REFUSED, "disagrees"),
        (REFUSED, REFUSED, "agrees"),
        (REFUSED, FASTER, "disagrees"),
        (UNSURE, UNSURE, "agrees"),
        (SLOWER, FASTER, "disagrees"),
    ],
)
def test_new_verdict_is_compared_with_the_receipt(folder, then, now, outcome):
    assert compare_with_receipt(receipt_of(folder, then), now).outcome == outcome


def test_signature_is_verified(folder, tmp_path):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen")
    key = tmp_path / "key"
    other = tmp_path / "other"
    signers = tmp_path / "signers"
    for file in (key, other):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    signers.write_text(f"a@example.org {key.with_suffix('.pub').read_text()}")
    file = tmp_path / "r.json"

    # By a known signer.
    signature = write_receipt(file, receipt_of(folder), key)
    assert signature is not None
    assert read_receipt(file, signers)

    # Changed by somebody who also mends its SHA-256.
    forged = copy.deepcopy(receipt_of(folder, verdict(9.0, 9.1)))
    write_receipt(file, forged)
    with pytest.raises(ReceiptError, match="not valid"):
        read_receipt(file, signers)

    # By another signer; without a signature.
    write_receipt(file, forged, other)
    with pytest.raises(ReceiptError, match="not valid"):
        read_receipt(file, signers)
    signature.unlink()
    with pytest.raises(ReceiptError, match="no signature"):
        read_receipt(file, signers)


def test_key_that_cannot_sign_is_an_error(folder, tmp_path):
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen")
    with pytest.raises(ReceiptError, match="ssh-keygen"):
        write_receipt(tmp_path / "r.json", receipt_of(folder), tmp_path / "no_key")


def test_another_function_of_the_same_file_is_refused(folder):
    receipt = receipt_of(folder)
    with read_task(folder) as task:
        other = dataclasses.replace(task, candidate=f"{folder / 'candidate.py'}:means")
    with pytest.raises(ReceiptError, match="candidate is the function sums"):
        check_files(receipt, other)


def test_functions_of_modules_have_no_receipt(folder):
    with read_task(folder) as task:
        unknown = dataclasses.replace(task, files=())
    with pytest.raises(ReceiptError, match="needs files"):
        make_receipt(unknown, FASTER, TERMS, Device("CPU", "cpu"))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "foretune-receipt/9"}'])
def test_read_receipt_other_files_are_refused(tmp_path, content):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(ReceiptError):
        read_receipt(tmp_path / "r.json")
