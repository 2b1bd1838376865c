"""Fuzzing in process: a valid sample for every decoder, spoiled again and again.

`DECODERS` says how a sample is written and read; `fuzz` counts what a decoder makes of spoiled ones
(`spoiling`). An input is named by seed, decoder and number, so that it can be made again.
"""

import importlib.util
import json
import random
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from spoiling import make_spoiler, spoil_bytes

from foretune.errors import ForetuneError, UsageError

HERE: dict[str, Any] = {"kernel": "gemm", "device": "NVIDIA H200"}
SECONDS = 10
"""An input that takes longer hangs."""


@dataclass(frozen=True)
class Decoder:
    """What reads a kind of file.

    Attributes:
        write: writes a valid sample into an empty folder.
        read: reads what is in a folder, and returns how many rows there are.
        all_rows: whether it must notice that rows got lost when bytes changed.
        changes: whether reading changes the folder.
    """

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    all_rows: bool = False
    changes: bool = False


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
                [config(4, BLOCK_M=64), [0.05, 0.04, 0.06]],
                [config(8, BLOCK_M=32), 0.07],
            ],
        },
    }


def _ktt(path: Path) -> None:
    result = {
        "KernelName": "gemm",
        "Status": "Ok",
        "TotalDuration": 12.5,
        "Configuration": [{"Name": "BLOCK", "ValueType": "UnsignedInt", "Value": 64}],
        "ComputationResults": [{"CompilationData": {"RegistersCount": 40}}],
    }
    about = {"Device": "NVIDIA H200", "KttVersion": "2.1", "TimeUnit": "Microseconds"}
    path.write_text(json.dumps({"Metadata": about, "Results": [result, result]}))


def _nvbench(path: Path) -> None:
    time = {"name": "value", "type": "float64", "value": "1.25e-05"}
    state = {
        "device": 0,
        "axis_values": [{"name": "N", "type": "int64", "value": "64"}],
        "summaries": [{"tag": "nv/cold/time/gpu/mean", "data": [time]}],
    }
    document = {
        "devices": [{"id": 0, "name": "NVIDIA H200"}],
        "benchmarks": [{"name": "copy", "states": [state, state]}],
    }
    path.write_text(json.dumps(document))


def _document(name: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(json.dumps(_documents()[name]))


def _torch_profiler(path: Path) -> None:
    trace = json.dumps(_samples("torch_profiler").hand_written_gpu_trace())
    path.write_text(trace.replace("aten::mm", HERE["kernel"]))


def _kerneltuner(path: Path) -> None:
    tuners = _samples("tuners")
    path.write_text(tuners.HEAD + ",\n".join(tuners.LINES) + "}\n}")


def _ncu(page: str) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        path.write_text(getattr(_samples("ncu"), page))

    return write


def _aiconfigurator(path: Path) -> None:
    table = pd.DataFrame(
        {
            "framework": "TRTLLM",
            "version": "1.3",
            "device": "NVIDIA H200",
            "kernel_source": "flow",
            "gemm_dtype": ["bfloat16", "fp8"],
            "m": [1, 32768],
            "n": [32, 4096],
            "k": [64, 128],
            "latency": [0.002, 1.5],
        }
    )
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)


def _generic(path: Path) -> None:
    table = gemms(6)[["status", "time_ms", "problem.M", "problem.N", "config.format"]]
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)


def gemms(rows: int) -> pd.DataFrame:
    """Return made-up measurements of matrix products."""
    from foretune.datasets.runs import with_specs

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


def _store(folder: Path) -> None:
    from foretune.tune.store.reader import SubjectContents, write_file
    from foretune.tune.store.subject import Choice, Subject

    rows = measured()
    subject = Subject("gemm", "9f", "NVIDIA H200", "1.0")
    choice = Choice(rows[0].config, 6, 0.01, "measured")
    write_file(folder / "store.json", [SubjectContents(subject, {rows[0].problem: choice}, rows)])


def _read_store(folder: Path) -> int:
    from foretune.tune.store.reader import StoreFile

    store = StoreFile(folder / "store.json")
    return sum(len(store.measurements(s)) + len(store.choices(s)) for s in store.subjects())


REQUEST = {"kernel": "gemm", "seed": 0}


def _campaign(folder: Path) -> None:
    from foretune.tune.campaign.folder import CampaignFolder

    CampaignFolder(folder, REQUEST).save(results={"M=1": {}}, device={"name": "x", "kind": "cpu"})


def _read_campaign(folder: Path) -> int:
    from foretune.tune.campaign.finished import load_campaign
    from foretune.tune.campaign.folder import CampaignFolder

    CampaignFolder(folder, REQUEST)
    try:
        load_campaign(folder)
    except UsageError as e:
        if "not finished" not in str(e):
            raise
    return 0


def _trees(model: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        x = np.random.default_rng(0).normal(0, 1, (60, 3)).astype(np.float32)
        trained = _model(model)(**{"rounds": 3} if model == "BoostingModel" else {"trees": 3})
        trained.fit(x, x[:, 0]).save(folder / f"x{trained.suffix}")

    return write


def _read_trees(model: str) -> Callable[[Path], int]:
    def read(folder: Path) -> int:
        from foretune.errors import PredictorError
        from foretune.support.files import translate_read_errors

        kind = _model(model)
        with translate_read_errors(folder, PredictorError, "is damaged ({})"):
            return len(kind.load(folder / f"x{kind.suffix}").predict(np.zeros((2, 3), np.float32)))

    return read


def _model(name: str) -> Any:
    from foretune.models.trees.boosting import BoostingModel
    from foretune.models.trees.forest import ForestModel

    return {"BoostingModel": BoostingModel, "ForestModel": ForestModel}[name]


LAYER = "E=8,N=1792,device_name=NVIDIA_H200.json"


def _layer(folder: Path) -> None:
    config = {
        "BLOCK_SIZE_M": 16,
        "BLOCK_SIZE_N": 64,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 1,
        "num_warps": 4,
        "num_stages": 3,
    }
    (folder / LAYER).write_text(json.dumps({"triton_version": "3.4", "1": config, "64": config}))


def _read_layer(folder: Path) -> int:
    from foretune.tune.doors.vllm import read_vllm

    return len(read_vllm(folder / LAYER).configs)


def _config(folder: Path) -> None:
    config = {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 100,
        "intermediate_size": 96,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "tie_word_embeddings": False,
        "sliding_window": 8,
        "layer_types": ["full_attention"] + 3 * ["sliding_attention"],
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    (folder / "config.json").write_text(json.dumps(config))


def _read_config(folder: Path) -> int:
    from foretune.plan.describe.huggingface import read_folder

    return int(read_folder(folder).parameters())


def _csv(name: str, text: str, read: Callable[[Path], Any]) -> Decoder:
    def write(folder: Path) -> None:
        (folder / name).write_text(text)

    return Decoder(write, lambda folder: len(read(folder / name)))


def _prices(path: Path) -> Any:
    from foretune.plan.describe.catalog import read_prices

    return read_prices(path)


def _accuracy(path: Path) -> Any:
    from foretune.plan.describe.accuracy import read_accuracy

    return read_accuracy(path)


def _trace(path: Path) -> Any:
    from foretune.plan.engine.requests import read_trace

    return read_trace(path).isl


def _demand(path: Path) -> Any:
    from foretune.plan.fleet.capacity import read_requests

    return read_requests(path)


def _calls(folder: Path) -> None:
    calls = [
        {
            "kernel": "m:f",
            "args": [
                {"tensor": "float16", "shape": [8, 4], "strides": [4, 1], "address": 16},
                3,
                [1, {"dtype": "fp16"}],
            ],
            "kwargs": {"n": n},
            "grid": {"BLOCK=64": [4, 1]},
        }
        for n in range(3)
    ]
    (folder / "calls.jsonl").write_text("".join(json.dumps(c) + "\n" for c in calls))


def _read_calls(folder: Path) -> int:
    from foretune.tune.triton.call_recorder import read_calls

    return len([call.text for call in read_calls(folder / "calls.jsonl")])


DECODERS = {
    "torch profiler": _importer("torch-profiler", "trace.json", _torch_profiler),
    "aiconfigurator.txt": _importer("aiconfigurator", "gemm_perf.txt", _aiconfigurator),
    "aiconfigurator.parquet": _importer("aiconfigurator", "gemm_perf.parquet", _aiconfigurator),
    "generic.csv": _importer("generic", "x.csv", _generic),
    "generic.parquet": _importer("generic", "x.parquet", _generic),
    "kerneltuner": _importer("kerneltuner", "x.json", _kerneltuner),
    "ktt": _importer("ktt", "x.json", _ktt),
    "nvbench": _importer("nvbench", "x.json", _nvbench),
    "ncu, details": _importer("ncu", "x.csv", _ncu("DETAILS")),
    "ncu, raw": _importer("ncu", "x.csv", _ncu("RAW")),
    "t4": _importer("t4", "x.json", _document("t4")),
    "triton": _importer("triton", "k.autotune.json", _document("triton")),
    "run table": Decoder(_table, _read_table),
    "journal": Decoder(_journal, _read_table),
    "run log": Decoder(_journal, _read_log, changes=True),
    "predictor, boosted": Decoder(_predictor("xgboost"), _read_predictor),
    "predictor, forest": Decoder(_predictor("random_forest"), _read_predictor),
    "trees, boosted": Decoder(_trees("BoostingModel"), _read_trees("BoostingModel")),
    "trees, forest": Decoder(_trees("ForestModel"), _read_trees("ForestModel")),
    "trace of requests": _csv("t.csv", "at_s,isl,osl\n0,8,4\n1.5,16,2\n", _trace),
    "rates of requests": _csv("r.csv", "isl,osl,requests_per_s\n512,64,1.5\n8,4,2\n", _demand),
    "exported store": Decoder(_store, _read_store, all_rows=True),
    "campaign": Decoder(_campaign, _read_campaign),
    "recorded calls": Decoder(_calls, _read_calls),
    "vLLM's tuned file": Decoder(_layer, _read_layer),
    "model's configuration": Decoder(_config, _read_config),
    "prices": _csv("p.csv", "system,usd_per_gpu_hour\nh200_sxm,2.5\nb200_sxm,4\n", _prices),
    "accuracies": _csv(
        "a.csv",
        "format,method,model,benchmark,baseline,quantized,better,source\n"
        "fp8,x,Llama-3.1-8B,GSM8K,73.7,73.4,higher,s\n",
        _accuracy,
    ),
}
"""Decoder -> what it reads."""


@dataclass
class Tally:
    """What a decoder made of spoiled inputs.

    Attributes:
        unexpected: number and outcome of inputs that neither gave a result nor one of our errors.
    """

    accepted: int = 0
    refused: int = 0
    unexpected: list[tuple[int, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        """All inputs."""
        return self.accepted + self.refused + len(self.unexpected)


def fuzz(
    name: str,
    folder: Path,
    inputs: int,
    seed: int = 0,
    start: int = 0,
    seconds: float = 1e9,
    note: Callable[[int], Any] = lambda number: None,
) -> Tally:
    """Read up to ``inputs`` spoiled samples in the empty ``folder``; ``note`` hears of each."""
    decoder = DECODERS[name]
    with warnings.catch_warnings(action="ignore"):
        decoder.write(folder)
        sample = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        spoilers = {p: make_spoiler(p.name, data) for p, data in sample.items()}
        whole = decoder.read(folder)
        tally = Tally()
        begun = time.process_time()
        signal.signal(signal.SIGALRM, _hangs)
        for number in range(start, start + inputs):
            if decoder.changes:
                _restore(folder, sample)
            note(number)
            rng = random.Random(f"{seed}/{name}/{number}")
            path = rng.choice(list(sample))
            by_byte = decoder.all_rows and number % 2
            data = spoil_bytes(sample[path], rng) if by_byte else spoilers[path](rng)
            path.write_bytes(data)
            _read_one(decoder, folder, number, whole if by_byte else 0, tally)
            path.write_bytes(sample[path])
            if time.process_time() > begun + seconds:
                break
    tally.seconds = time.process_time() - begun
    return tally


def _read_one(decoder: Decoder, folder: Path, number: int, whole: int, tally: Tally) -> None:
    signal.alarm(SECONDS)
    try:
        rows = decoder.read(folder)
    except ForetuneError as e:
        if str(e) and "\n" not in str(e):
            tally.refused += 1
        else:
            tally.unexpected.append((number, f"not one line: {e}"))
    except BaseException as e:
        tally.unexpected.append((number, f"{type(e).__name__}: {e}"[:200]))
    else:
        tally.accepted += rows >= whole
        if rows < whole:
            tally.unexpected.append((number, f"{rows} of {whole} rows, without a word"))
    finally:
        signal.alarm(0)


def _hangs(*_: object) -> None:
    raise SystemExit(f"it takes more than {SECONDS} s")


def _restore(folder: Path, sample: dict[Path, bytes]) -> None:
    for path in set(folder.rglob("*")) - {*sample}:
        path.unlink()
    for path, data in sample.items():
        path.write_bytes(data)
