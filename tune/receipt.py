"""Receipts: a verdict that others can check, on another machine and at another time.

A receipt is JSON. It has the SHA-256 of every file of the task, the problems, what was checked and
how, the ratio of every process, the interval, the machine and its software. Its own SHA-256 shows
whether it was changed by accident; only a signature shows whether it was changed on purpose.

`ssh-keygen -Y` signs and verifies, with the keys that people have.
"""

import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from foretune.collect.versions import versions
from foretune.device import Device, hardware_digest
from foretune.errors import UsageError
from foretune.problem import Problem
from foretune.result import Result, plain
from foretune.support.files import atomic_write
from foretune.tune.judge import CHECK_SEEDS, CLOCK_NOISE, OUTPUT_CHECK_SHARE
from foretune.tune.tasks.task import SIGNATURE_SUFFIX, Task
from foretune.tune.verdict import Verdict
from foretune.tune.verifier import ERROR, LOOKS
from foretune.version import __version__

FORMAT = "foretune-receipt/1"
SIGNATURE_NAMESPACE = "foretune-receipt"
DIGEST = "sha256"
NOT_DETECTED = (
    "work that a thread of the candidate does between calls, on systems other than Linux",
    "weights that are loaded into a model after it was made",
    "files that the candidate exchanges with other processes",
    "shapes and values other than those checked",
)
"""What would not count against the candidate, because the judge cannot see it."""
KEYGEN_LIMIT_S = 60.0


class ReceiptError(UsageError):
    """A receipt cannot be read, was changed, or does not belong to these files."""


@dataclass(frozen=True)
class Terms:
    """Under which conditions a verdict was given, so that it can be repeated."""

    tolerance: float | None
    session_s: float
    backward: bool = False
    solution: str = ""
    tune_s: float = 0.0
    special_values: bool = True


@dataclass(frozen=True, eq=False, repr=False)
class ReceiptCheck(Result):
    """Whether judging again agrees with a receipt.

    ``reason`` is one line for people.
    """

    outcome: Literal["agrees", "disagrees", "cannot tell"]
    reason: str

    @property
    def headline(self) -> str:
        """The outcome and why."""
        return f"{self.outcome}: {self.reason}"


def make_receipt(task: Task, verdict: Verdict, terms: Terms, device: Device) -> dict[str, Any]:
    """Return the receipt of a verdict as plain values.

    Raises ReceiptError for functions of modules, whose files are not known.
    """
    if not task.files:
        raise ReceiptError("a receipt needs files: name the functions FILE.py:NAME")
    process_ratios = []
    for ruling in verdict.problem_verdicts:
        ratios_of_rival = {rival: list(ratios) for rival, ratios in ruling.process_ratios.items()}
        process_ratios.append(ratios_of_rival)
    receipt = {
        "format": FORMAT,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "foretune": __version__,
        "task": {
            "form": task.form,
            "functions": task.functions,
            "files": task.file_hashes(),
            "problems": [dict(problem) for problem in task.problems],
        },
        "terms": asdict(terms),
        "checked": {
            "new inputs compared before timing": CHECK_SEEDS,
            "share of timed rounds compared": OUTPUT_CHECK_SHARE,
            "largest deviation of the candidate's clock": CLOCK_NOISE,
            "inputs": "the task's own, of new random seeds in every round",
        },
        "error of one end of the interval": ERROR,
        "processes at each look, with their share of the error": {
            str(processes): share for processes, share in LOOKS.items()
        },
        "verdict": verdict.to_dict(),
        "speed-up in each process, by problem and rival": process_ratios,
        "machine": {
            "device": device.name,
            "kind": device.kind,
            "hardware": hardware_digest(device),
            "specs": dict(device.specs),
        },
        "software": versions(),
        "not detected": list(NOT_DETECTED),
    }
    plain_receipt = plain(receipt, as_json=True)
    return {**plain_receipt, DIGEST: _digest(plain_receipt)}


def write_receipt(file: Path, receipt: Mapping[str, Any], key: Path | None = None) -> Path | None:
    """Write a receipt, and with a private SSH key its signature beside it.

    Returns the signature's file. Raises ReceiptError if ``ssh-keygen`` cannot sign.
    """
    text = json.dumps(receipt, indent=1, ensure_ascii=False) + "\n"
    with atomic_write(file, ReceiptError) as temporary:
        temporary.write_text(text, encoding="utf-8")
    if key is None:
        return None
    signature = file.with_name(file.name + SIGNATURE_SUFFIX)
    signature.unlink(missing_ok=True)
    _ssh_keygen("sign", {"-f": str(key), "-n": SIGNATURE_NAMESPACE}, str(file))
    return signature


def read_receipt(file: Path, signers: Path | None = None) -> dict[str, Any]:
    """Read a receipt that was not changed.

    Args:
        file: the receipt.
        signers: an ``allowed_signers`` file of OpenSSH; the signature beside the receipt must then
            be by one of them.

    Raises:
        ReceiptError: it is no receipt, it was changed, or no signer signed it.
    """
    try:
        receipt = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ReceiptError(f"{file} cannot be read as a receipt: {e}") from e
    if not isinstance(receipt, dict) or receipt.get("format") != FORMAT:
        raise ReceiptError(f"{file} is no receipt of the form {FORMAT}")
    if receipt.get(DIGEST) != _digest(receipt):
        raise ReceiptError(f"{file} was changed after it was made: its SHA-256 differs")
    try:
        terms_of(receipt), problems_of(receipt)
        receipt["task"]["functions"], receipt["task"]["files"], receipt["verdict"]["verdict"]
    except (KeyError, TypeError) as e:
        raise ReceiptError(f"{file} is no complete receipt: {e} is missing or wrong") from e
    if signers is not None:
        _verify_signature(file, signers)
    return receipt


def terms_of(receipt: Mapping[str, Any]) -> Terms:
    """Return the conditions under which to judge again."""
    return Terms(**receipt["terms"])


def problems_of(receipt: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a receipt."""
    return [Problem(problem) for problem in receipt["task"]["problems"]]


def check_files(receipt: Mapping[str, Any], task: Task) -> None:
    """Raise ReceiptError if a task's files or functions are not those of the receipt."""
    for role, name in receipt["task"]["functions"].items():
        if task.functions.get(role) != name:
            raise ReceiptError(f"the receipt's {role} is the function {name}: judge the same one")
    then = receipt["task"]["files"]
    now = task.file_hashes()
    for name in sorted({*then, *now}):
        if name not in now:
            raise ReceiptError(f"{name} of the receipt is not in {task.folder}")
        if name not in then:
            raise ReceiptError(f"{name} in {task.folder} is not in the receipt")
        if then[name] != now[name]:
            raise ReceiptError(f"{name} is not the file of the receipt: its SHA-256 differs")


def compare_with_receipt(receipt: Mapping[str, Any], verdict: Verdict) -> ReceiptCheck:
    """Compare a new verdict with that of a receipt.

    On another machine, a speed-up may differ. So a faster candidate must be faster again, by any
    factor; an interval around 1 neither confirms nor refutes it.
    """
    then = receipt["verdict"]
    if then["accepted"] != verdict.accepted:
        words = {True: "accepted", False: "refused"}
        reason = f"{words[then['accepted']]} then, {words[verdict.accepted]} now"
        return ReceiptCheck("disagrees", f"{reason}: {verdict.refused or 'see the verdict'}")
    if verdict.refused:
        return ReceiptCheck("agrees", f"refused again: {verdict.refused}")

    low, high = verdict.interval
    now = f"{verdict.speedup:.2f}× ({low:.2f}–{high:.2f}) now, {then['speedup']:.2f}× then"
    outcomes = (then["verdict"], verdict.outcome)
    if outcomes[0] == outcomes[1] or set(outcomes) == {"no_win", "slower"}:
        return ReceiptCheck("agrees", now)
    if "inconclusive" in outcomes:
        return ReceiptCheck("cannot tell", now)
    return ReceiptCheck("disagrees", now)


def _digest(receipt: Mapping[str, Any]) -> str:
    content = {name: value for name, value in receipt.items() if name != DIGEST}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _verify_signature(file: Path, signers: Path) -> None:
    """Raise ReceiptError unless one of the signers signed a receipt."""
    signature = file.with_name(file.name + SIGNATURE_SUFFIX)
    if not signature.is_file():
        raise ReceiptError(f"{file} has no signature {signature.name} beside it")
    names = _ssh_keygen(
        "find-principals", {"-s": str(signature), "-f": str(signers)}, checked=str(signature)
    )
    signer = names.strip().splitlines()[0]
    _ssh_keygen(
        "verify",
        {"-f": str(signers), "-I": signer, "-n": SIGNATURE_NAMESPACE, "-s": str(signature)},
        stdin=file.read_bytes(),
        checked=str(signature),
    )


def _ssh_keygen(
    operation: str,
    options: Mapping[str, str],
    *files: str,
    stdin: bytes = b"",
    checked: str = "the receipt",
) -> str:
    """Run an operation on signatures (``ssh-keygen -Y``), and return its output.

    ``checked`` names what is invalid if it fails.
    """
    command = ["ssh-keygen", "-Y", operation]
    for name, value in options.items():
        command += [name, value]
    command += files
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=KEYGEN_LIMIT_S)
    except FileNotFoundError as e:
        raise ReceiptError("there is no ssh-keygen: install OpenSSH 8.2 or newer") from e
    except subprocess.TimeoutExpired as e:
        raise ReceiptError("ssh-keygen waits for a passphrase: add the key to an agent") from e
    if done.returncode:
        message = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        last_line = " ".join(message[-1:])
        raise ReceiptError(f"{checked} is not valid: ssh-keygen says {last_line}")
    return done.stdout.decode(errors="replace")
