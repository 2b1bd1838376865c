"""Damaged files: a valid sample for every decoder, and ways to spoil one.

`DECODERS` says how a sample is written and read; `spoil` changes a file as its name's ending asks:
bytes of any, values of JSON, cells of text, arrays in archives, nodes of trees.
"""

import contextlib
import gzip
import importlib.util
import io
import json
import random
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.errors import UsageError
from foretune.models.trees import ubjson

HERE = {"kernel": "gemm", "device": "NVIDIA H200"}
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 2, 0.5, -0.0, 1e308, 10**9, 10**30, -(2**63), float("nan"),
    float("inf"), "", "x", "ok", "\ud800", "9" * 5000, [], {}, [[]], [1, 2], {"a": 1}, [{}], [None],
]  # fmt: skip
"""What stands in place of a JSON value."""
WORDS = ["", "x", "nan", "inf", "-1", "0", "1e308", "9" * 400, "true", "None", ",", '"', "\n", ";",
         "(", "\x00", "ü", "1e400", "-0", "[]"]  # fmt: skip
"""What stands in place of a word of a text."""
NUMBERS = [-1, -2, 0, 1, 2, 7, 255, 10**6, 10**9, 2**31 - 1, -(2**31), 2**62]
FLOATS = [*NUMBERS, np.nan, np.inf, -np.inf, 0.5, -1e308, 1e-320]


def spoil(data: bytes, name: str, rng: random.Random) -> bytes:
    """Return a file's content, spoiled; two of three times so that it is still of its kind."""
    suffix = next((s for s in _OF_KIND if name.endswith(s)), None)
    if suffix is None or rng.random() < 1 / 3:
        return bytes_of(data, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers that do not fit into an array
        return _OF_KIND[suffix](data, rng)


def bytes_of(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, delete, insert, repeat or clear bytes."""
    new, n = bytearray(data), len(data)
    at, size = rng.randrange(n + 1), rng.choice([1, 2, 8, 64, 1024])
    how = rng.randrange(6)
    if how == 0:
        for _ in range(rng.choice([1, 1, 2, 8])):
            new[rng.randrange(n)] ^= 1 << rng.randrange(8)
    elif how == 1:
        del new[at:]
    elif how == 2:
        del new[at : at + size]
    elif how == 3:
        new[at:at] = rng.randbytes(size)
    elif how == 4:
        new[at:at] = new[max(0, at - size) : at]
    else:
        new[at : at + size] = bytes(len(new[at : at + size]))
    return bytes(new)


def _json(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.02:
        return b"[" * 100_000
    return json.dumps(_swapped(json.loads(data), rng)).encode()


def _swapped(document: Any, rng: random.Random) -> Any:
    """Return a document with a value replaced, left out or twice."""
    places = [((), None)]
    stack = [((), document)]
    while stack:
        path, value = stack.pop()
        items = value.items() if isinstance(value, dict) else ()
        items = enumerate(value) if isinstance(value, list) else items
        for key, inner in items:
            places.append(((*path, key), inner))
            stack.append(((*path, key), inner))
    *path, last = rng.choice(places)[0] or (None,)
    if last is None:
        return rng.choice(HOSTILE)
    parent = document
    for key in path:
        parent = parent[key]
    how = rng.randrange(6)
    if how == 0:
        del parent[last]
    elif how == 1 and isinstance(parent, list):
        parent.append(parent[last])
    elif how == 1:
        parent[f"{last}x"] = parent.pop(last)
    else:
        parent[last] = rng.choice(HOSTILE)
    return document


def _lines(data: bytes, rng: random.Random) -> bytes:
    """Spoil one line of a file with a JSON document in each."""
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = _json(lines[at], rng)
    return b"\n".join(lines) + b"\n"


def _text(data: bytes, rng: random.Random) -> bytes:
    text = data.decode()
    word = rng.choice(list(re.finditer(r"[\w.+-]+|[,\"\n]", text)))
    return (text[: word.start()] + rng.choice(WORDS) + text[word.end() :]).encode()


def _gz(data: bytes, rng: random.Random) -> bytes:
    return gzip.compress(_json(gzip.decompress(data), rng), 1)


def _archive(data: bytes, rng: random.Random) -> bytes:
    """Spoil one array of an archive, or its bytes, and keep the checksums right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(parts))
    how = rng.randrange(8)
    if how == 0:
        del parts[name]
    elif how == 1:
        parts[name] = bytes_of(parts[name], rng)
    elif name.endswith(".json"):
        parts[name] = _json(parts[name], rng)
    else:
        array = _array(np.load(io.BytesIO(parts[name])), rng)
        parts[name] = (out := io.BytesIO()) and (np.save(out, array), out.getvalue())[1]
    new = io.BytesIO()
    with zipfile.ZipFile(new, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return new.getvalue()


def _array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """Return an array with a number of it, its shape or its type replaced."""
    how = rng.randrange(6)
    if how == 0:
        return array.ravel()[: rng.randrange(array.size + 1)]
    if how == 1:
        return array.astype(rng.choice(["i1", "u8", "f2", "f8", "S3", "?"]))
    if how == 2:
        return array[None] if rng.random() < 0.5 else np.concatenate([array.ravel()] * 2)
    new = array.copy()
    flat = new.reshape(-1).view()
    if flat.size and flat.dtype.names:
        flat = flat[rng.choice(flat.dtype.names)]
    if flat.size:
        at, number = rng.randrange(flat.size), rng.choice(FLOATS)
        with contextlib.suppress(ValueError, OverflowError), np.errstate(all="ignore"):
            flat[at] = at if rng.random() < 0.2 else np.array(number).astype(flat.dtype)
    return new


def _parquet(data: bytes, rng: random.Random) -> bytes:
    import pyarrow.parquet as pq

    source = pq.read_table(io.BytesIO(data))
    table = source.to_pandas()
    column = rng.choice(list(table.columns))
    value, how = rng.choice([None, 0, -1, 1e308, np.nan, np.inf, "x", "", True, [1], b"\xff"]), 0
    how = rng.randrange(4)
    if how == 0:
        table = table.drop(columns=column)
    elif how == 1:
        table = table.rename(columns={column: rng.choice([f"{column}x", "config.", "", "a.b"])})
    elif how == 2:
        table[column] = [value] * len(table)
    else:
        cells = list(table[column])
        cells[rng.randrange(len(cells))] = value
        table[column] = pd.Series(cells, dtype=object)
    out = io.BytesIO()
    try:
        table.to_parquet(out)
    except Exception:  # Parquet cannot hold it
        return bytes_of(data, rng)
    spoiled = pq.read_table(out)
    notes = dict(source.schema.metadata or {})
    notes.pop(b"pandas", None)
    if notes and rng.random() < 0.3:
        key = rng.choice(sorted(notes))
        notes[key] = rng.choice([b"", b"x", b"-1", b"99", b"[1]", b"{}", b'["nope"]', b"\xff"])
    out = io.BytesIO()
    pq.write_table(spoiled.replace_schema_metadata(notes), out)
    return out.getvalue()


def _trees(data: bytes, rng: random.Random) -> bytes:
    """Spoil a model of XGBoost: three of four times a node of a tree, else anything else."""
    document = ubjson.read(gzip.decompress(data))
    model = document["learner"]["gradient_booster"]["model"]
    if rng.random() < 0.75:
        tree = rng.choice(model["trees"])
        name = rng.choice([n for n, v in sorted(tree.items()) if isinstance(v, np.ndarray)])
        tree[name] = _array(tree[name], rng)
    else:
        kept, model["trees"] = model["trees"], []
        document = _swapped(document, rng)
        with contextlib.suppress(LookupError, TypeError):
            document["learner"]["gradient_booster"]["model"]["trees"] = kept
    return gzip.compress(write_ubjson(document), 1)


def write_ubjson(value: Any) -> bytes:
    """Return a document as XGBoost writes it."""
    if isinstance(value, dict):
        inner = b"".join(_size(str(n)) + write_ubjson(v) for n, v in value.items())
        return b"{" + inner + b"}"
    if isinstance(value, np.ndarray) and (mark := _MARKS.get(value.dtype.newbyteorder(">").str)):
        body = value.astype(value.dtype.newbyteorder(">")).tobytes()
        return b"[$" + bytes([mark]) + b"#L" + struct.pack(">q", value.size) + body
    if isinstance(value, (list, np.ndarray)):
        values = list(map(write_ubjson, list(value)))
        return b"[#L" + struct.pack(">q", len(values)) + b"".join(values)
    if isinstance(value, str):
        return b"S" + _size(value)
    if value is None or isinstance(value, bool):
        return {None: b"Z", True: b"T", False: b"F"}[value]
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return b"L" + struct.pack(">q", value)
    return (
        b"d" + np.array(value, dtype=object).astype(">f4").tobytes()
        if not isinstance(value, (bytes, np.generic))
        else b"Z"
    )


_MARKS = {dtype.str: mark for mark, dtype in ubjson.NUMBERS.items()}


def _size(text: str) -> bytes:
    data = text.encode(errors="replace")
    return b"L" + struct.pack(">q", len(data)) + data


_OF_KIND: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".ubj.gz": _trees, ".json.gz": _gz, ".json": _json, ".jsonl": _lines, ".journal": _lines,
    ".npz": _archive, ".parquet": _parquet, ".csv": _text, ".txt": _text,
}  # fmt: skip


@dataclass(frozen=True)
class Decoder:
    """What reads a kind of file.

    Attributes:
        write: writes a valid sample into an empty folder.
        read: reads what is in a folder, and returns how many rows there are.
        all_rows: whether it must notice that rows got lost when bytes changed.
    """

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    all_rows: bool = False


def _importer(format: str, name: str, text: Callable[[Path], Any]) -> Decoder:
    def read(folder: Path) -> int:
        from foretune.datasets import import_runs

        return len(import_runs(folder / name, format, **HERE).runs)

    return Decoder(lambda folder: text(folder / name), read)


def _samples(name: str) -> Any:
    """Return the module of tests that has samples of a format."""
    path = Path(__file__).parents[1] / "datasets" / f"test_importers_{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _documents() -> dict[str, Any]:
    tuners = _samples("tuners")
    about = {"autotuner": "KTT", "device": "NVIDIA H200", "timeunit": "microseconds"}
    results = [tuners.t4_result(12.2), tuners.t4_result("failed", invalidity="timeout")]
    config = tuners.triton_config
    return {
        "t4": {"results": results, "schema_version": "1.0.0", "metadata": about},
        "triton": {
            "key": tuners.TRITON_KEY,
            "configs_timings": [
                [config(4, BLOCK_M=64), [0.05, 0.04, 0.06]], [config(8, BLOCK_M=32), 0.07],
            ],
        },
    }  # fmt: skip


def _document(name: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(json.dumps(_documents()[name]))


def _kerneltuner(path: Path) -> None:
    tuners = _samples("tuners")
    path.write_text(tuners.HEAD + ",\n".join(tuners.LINES) + "}\n}")


def _ncu(page: str) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        path.write_text(getattr(_samples("ncu"), page))

    return write


def _vidur(path: Path) -> None:
    _samples("vidur").mlp().to_csv(path, index=False)


def _aiconfigurator(path: Path) -> None:
    table = pd.DataFrame(
        {"framework": "TRTLLM", "version": "1.3", "device": "NVIDIA H200", "kernel_source": "flow",
         "gemm_dtype": ["bfloat16", "fp8"], "m": [1, 32768], "n": [32, 4096], "k": [64, 128],
         "latency": [0.002, 1.5]}
    )  # fmt: skip
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)


def _generic(path: Path) -> None:
    table = gemms(6)[["status", "time_ms", "problem.M", "problem.N", "config.format"]]
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)


def gemms(rows: int) -> pd.DataFrame:
    """Return made-up measurements of matrix products."""
    from foretune.datasets.devices import with_specs

    rng = np.random.default_rng(0)
    sizes = {f"problem.{s}": 2 ** rng.integers(6, 13, rows) for s in "MNK"}
    fixed = {**HERE, "status": "ok"}
    runs = pd.DataFrame({**fixed, **sizes, "config.format": rng.choice(["bf16", "fp8"], rows)})
    work = runs["problem.M"] * runs["problem.N"] * runs["problem.K"]
    return with_specs(runs.assign(time_ms=0.01 + work * 4e-12))


def measured() -> list[Any]:
    """Return made-up measurements, one of which failed."""
    from foretune.datasets import to_measurements

    rows = gemms(6)
    rows.loc[5, "status"], rows.loc[5, "time_ms"] = "timeout", np.nan
    return to_measurements(rows)


def _table(folder: Path) -> None:
    from foretune.datasets import write_runs

    write_runs(folder / "runs.parquet", gemms(6))


def _journal(folder: Path) -> None:
    from foretune.datasets.runs import to_row

    rows = [json.dumps(to_row(m), default=float) + "\n" for m in measured()]
    (folder / "runs.parquet.journal").write_text("".join(rows))


def _read_table(folder: Path) -> int:
    from foretune.datasets import read_runs, to_measurements

    return len(to_measurements(read_runs(folder / "runs.parquet")))


def _read_log(folder: Path) -> int:
    from foretune.datasets.run_log import RunLog

    with RunLog(folder / "runs.parquet") as log:
        return len(log)


def _predictor(model: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from foretune.models import Predictor

        parameters = {"rounds": 12, "depth": 4} if model == "xgboost" else {"trees": 5}
        runs = gemms(80).assign(power_w=lambda t: 100.0 + 50.0 * np.log2(t["problem.M"]))
        spoiled = runs.index % 7 == 0
        runs.loc[spoiled, "status"] = "timeout"
        runs.loc[spoiled, ["time_ms", "power_w"]] = np.nan
        Predictor(model, parameters=parameters).fit(runs).save(folder / "predictor")

    return write


def _read_predictor(folder: Path) -> int:
    from foretune.models import Predictor

    predictor = Predictor.load(folder / "predictor")
    predictor.predict(gemms(2))  # few rows go another way than many
    return len(predictor.predict(gemms(12)))


def _policy(folder: Path) -> None:
    from foretune.problem import Problem
    from foretune.search.policies.policy import Policy
    from foretune.search.policies.reinforce import TrainingSchedule
    from foretune.search.policies.tasks import Task
    from foretune.space import SearchSpace

    space = SearchSpace({"x": (1, 2, 4), "y": (False, True)})
    task = Task(space, Problem({"M": 64}), reward=lambda chosen: 1.0 / (1.0 + chosen))
    Policy.train([task], schedule=TrainingSchedule(updates=1, episodes=2)).save(folder / "policy")


def _read_policy(folder: Path) -> int:
    from foretune.search.policies.policy import Policy

    Policy.load(folder / "policy")
    return 0


def _store(folder: Path) -> None:
    from foretune.tune.store.file import write_file
    from foretune.tune.store.subject import Choice, Subject

    rows = measured()
    subject = Subject("gemm", "9f", "NVIDIA H200", "1.0")
    choice = Choice(rows[0].config, 6, 0.01, "measured")
    write_file(folder / "store.json", [(subject, {rows[0].problem: choice}, rows)])


def _read_store(folder: Path) -> int:
    from foretune.tune.store.store_file import StoreFile

    store = StoreFile(folder / "store.json")
    return sum(len(store.measurements(s)) + len(store.choices(s)) for s in store.subjects())


REQUEST = {"kernel": "gemm", "seed": 0}


def _campaign(folder: Path) -> None:
    from foretune.tune.campaign.folder import open_folder

    open_folder(folder, REQUEST).save(results={"M=1": {}}, device={"name": "x", "kind": "cpu"})


def _read_campaign(folder: Path) -> int:
    from foretune.tune.campaign.folder import open_folder
    from foretune.tune.report.campaign import rebuild_report

    path = folder / "gemm-001"
    text = (path / "campaign.json").read_bytes()
    open_folder(folder, REQUEST)
    (path / "campaign.json").write_bytes(text)
    try:
        rebuild_report(path)
    except UsageError as e:
        if "not finished" not in str(e):
            raise
    return 0


def _calls(folder: Path) -> None:
    calls = [
        {"kernel": "m:f", "args": [{"tensor": "float16", "shape": [8, 4], "strides": [4, 1],
                                    "address": 16}, 3, {"tuple": [1, {"dtype": "fp16"}]}],
         "kwargs": {"n": n}, "grid": {"BLOCK=64": [4, 1]}}
        for n in range(3)
    ]  # fmt: skip
    (folder / "calls.jsonl").write_text("".join(json.dumps(c) + "\n" for c in calls))


def _read_calls(folder: Path) -> int:
    from foretune.tune.triton.call_recorder import read_calls

    return len([call.text for call in read_calls(folder / "calls.jsonl")])


def _order(folder: Path) -> None:
    from foretune.models.launch_order import SHIPPED

    (folder / "launches.npz").write_bytes(SHIPPED.read_bytes())


def _read_order(folder: Path) -> int:
    from foretune.models.launch_order import LaunchOrder

    order = LaunchOrder.load(folder / "launches.npz")
    order.trees.sums(np.zeros((3, order.trees.features), dtype=np.float32))
    return 0


DECODERS = {
    "aiconfigurator.txt": _importer("aiconfigurator", "gemm_perf.txt", _aiconfigurator),
    "aiconfigurator.parquet": _importer("aiconfigurator", "gemm_perf.parquet", _aiconfigurator),
    "generic.csv": _importer("generic", "x.csv", _generic),
    "generic.parquet": _importer("generic", "x.parquet", _generic),
    "kerneltuner": _importer("kerneltuner", "x.json", _kerneltuner),
    "ncu, details": _importer("ncu", "x.csv", _ncu("DETAILS")),
    "ncu, raw": _importer("ncu", "x.csv", _ncu("RAW")),
    "t4": _importer("t4", "x.json", _document("t4")),
    "triton": _importer("triton", "k.autotune.json", _document("triton")),
    "vidur": _importer("vidur", "mlp.csv", _vidur),
    "run table": Decoder(_table, _read_table),
    "journal": Decoder(_journal, _read_table),
    "run log": Decoder(_journal, _read_log),
    "predictor, boosted": Decoder(_predictor("xgboost"), _read_predictor),
    "predictor, forest": Decoder(_predictor("random_forest"), _read_predictor),
    "policy": Decoder(_policy, _read_policy),
    "exported store": Decoder(_store, _read_store, all_rows=True),
    "campaign": Decoder(_campaign, _read_campaign),
    "recorded calls": Decoder(_calls, _read_calls),
    "order of launches": Decoder(_order, _read_order),
}
"""Decoder -> what it reads."""


def spoiled(folder: Path, name: str, index: int, seed: int = 0) -> tuple[Path, bytes]:
    """Return which file of a sample is spoiled in an input, and what is then in it."""
    rng = random.Random(f"{seed}/{name}/{index}")
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    path = rng.choice(files)
    return path, (bytes_of if DECODERS[name].all_rows and index % 2 else _spoil_named(path))(
        path.read_bytes(), rng
    )


def _spoil_named(path: Path) -> Callable[[bytes, random.Random], bytes]:
    return lambda data, rng: spoil(data, path.name, rng)
