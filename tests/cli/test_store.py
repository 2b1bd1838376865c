"""``foretune store`` and ``foretune export`` as their users meet them."""

import json
import math

import pytest
from commands import fails, run_json

from foretune.cli import main
from foretune.collect.devices import local_cpu
from foretune.datasets import read_runs, write_runs
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Choice, Store, Subject

SUBJECT = Subject("softmax", "9f3a4c5d6e7f", "NVIDIA H200", "foretune 0.1.0, triton 3.9.0")
OLD = Subject("softmax", "11112222", "NVIDIA H200", "foretune 0.1.0, triton 3.6.0")
MOE = Subject("fused_moe", "aa", "NVIDIA B200", "foretune 0.1.0, triton 3.9.0")
BLOCKS = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}
B200 = "E=128,N=1024,device_name=NVIDIA_B200.json"


def rows(subject, at, sizes=(64, 256, 1024, 4096)):
    """Small blocks win on small problems; the largest never runs."""
    for n in sizes:
        for block in (64, 1024, 2**20):
            time_ms = math.nan if block > 4096 else 1.0 + abs(math.log2(n / block)) / 10
            status = Status.OK if time_ms == time_ms else Status.COMPILE_ERROR
            yield Measurement(
                subject.kernel,
                Problem(n=n),
                Configuration(BLOCK=block),
                subject.device,
                status,
                time_ms,
                recorded_at=at,
            )


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty directory and an empty store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "tuned.db"))
    return tmp_path


@pytest.fixture
def filled():
    store = Store()
    store.put(SUBJECT, rows(SUBJECT, "2026-02-01T00:00:00+00:00"))
    store.put(OLD, rows(OLD, "2026-01-01T00:00:00+00:00", sizes=(64,)))
    store.choose(SUBJECT, Problem(n=64), Choice(Configuration(BLOCK=64), 3, 0.02, "measured"))
    return store


class TestStore:
    def test_store_empty_says_so(self, capsys):
        Store().forget()
        assert main(["store"]) == 0
        assert "tuned.db: nothing has been tuned yet" in capsys.readouterr().out
        assert run_json(capsys, "store")["subjects"] == []

    def test_store_lists_kernels(self, filled, capsys):
        listed = run_json(capsys, "store")["subjects"]
        assert [(s["subject"]["source"], s["measurements"]) for s in listed] == [
            (OLD.source, 3),
            (SUBJECT.source, 12),
        ]
        assert (listed[1]["problems"], listed[1]["failed"], listed[1]["choices"]) == (4, 4, 1)
        assert main(["store"]) == 0
        out = capsys.readouterr().out
        assert "9f3a4c5d" in out
        assert all(len(line) <= 80 for line in out.splitlines())

    def test_store_shows_problems(self, filled, capsys):
        chosen = Choice(Configuration(BLOCK=1024), 3, 0.0, "measured")
        filled.choose(SUBJECT, Problem(n=256, candidates="0af3"), chosen)
        old, new = run_json(capsys, "store", "softmax")["subjects"]
        assert [p["problem"] for p in new["problems"]] == [{"n": n} for n in (64, 256, 1024, 4096)]
        first = new["problems"][0]
        assert (first["choice"]["config"], first["choice"]["how"]) == ({"BLOCK": 64}, "measured")
        assert first["best_ms"] == 1.0
        assert sorted(str(m["time_ms"]) for m in first["measurements"])[::2] == ["1.0", "None"]
        assert old["problems"][0]["choice"] is None
        assert new["problems"][1]["choice"]["config"] == {"BLOCK": 1024}, "among some candidates"
        assert filled.summary()[1].problems == 4
        assert main(["store", "softmax", "--problem", "n=64"]) == 0
        out = capsys.readouterr().out
        assert "BLOCK=64" in out
        assert "n=256" not in out
        assert all(len(line) <= 80 for line in out.splitlines())

    def test_store_exports_and_merges(self, filled, place, capsys):
        printed = run_json(capsys, "store", "softmax", "--export", "out.json")
        assert printed["subjects"] == 2
        merged = run_json(capsys, "store", "--merge", "out.json", "--store", "other.db")["merged"]
        assert [(m["measurements"], m["choices"], m["unchanged"]) for m in merged] == [(15, 1, 0)]
        assert main(["store", "--merge", "out.json", "--store", "other.db"]) == 0
        assert "0 new measurements, 0 new choices, 16 already known" in capsys.readouterr().out
        shipped = run_json(capsys, "store", "--store", "out.json")
        assert shipped["subjects"] == run_json(capsys, "store")["subjects"]

    def test_store_forgets_chosen_part(self, filled, capsys):
        forget = ("store", "softmax", "--forget")
        printed = run_json(capsys, *forget, "--source", "1111")
        assert printed["forgotten"] == 3
        assert Store().subjects() == [SUBJECT]
        precise = Problem(n=64, specialized="x:16")
        filled.choose(SUBJECT, precise, Choice(Configuration(BLOCK=64), 3, 0.02, "measured"))
        assert run_json(capsys, *forget, "--problem", "n=64")["forgotten"] == 5
        assert run_json(capsys, *forget, "--device", "other")["forgotten"] == 0
        assert run_json(capsys, "store", "--forget", "--all")["forgotten"] == 9

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["softmix"], 2, "unknown kernel in this store 'softmix': did you mean"),
            (["softmax", "--problem", "n=7"], 2, "tuned.db has no softmax n=7"),
            (["--forget"], 2, "give either a kernel or --all"),
            (["softmax", "--forget", "--all"], 2, "give either a kernel or --all"),
            (["--forget", "--all", "--device", "x"], 2, "--forget --all deletes everything: leave"),
            (["softmax", "--all"], 2, "--all is for --forget: add it"),
            (["--forget", "--export", "a.json"], 2, "give only one of --export, --merge and"),
            (["--merge", "nothing.json"], 1, "cannot read nothing.json"),
            (["--merge", "broken.json"], 1, "broken.json is not an exported store"),
            (["--store", "nothing.json"], 1, "cannot read nothing.json"),
            (["--store", "broken.db"], 1, "broken.db is not a store"),
            (["--store", "none"], 2, "this command needs the store: leave --store none out"),
            (["--device", "x"], 2, "a list does not take device: leave --device out"),
            (["--export", "a.txt"], 2, "a.txt: use .json, to ship or merge, or .parquet, to"),
            (
                ["--export", "a.parquet", "--store", "empty.db"],
                2,
                "holds no measurements: there is nothing to train on",
            ),
            (
                ["x", "--export", "a.json", "--store", "empty.db"],
                2,
                "empty.db knows no kernel 'x': nothing",
            ),
            (["--merge", "out.json", "--store", "broken.json"], 1, "broken.json is not a database"),
            (["--export", "broken.db/out.json"], 1, "cannot write"),
            (["list"], 2, "unknown kernel in this store 'list'"),
        ],
    )
    def test_mistakes_are_one_line(self, filled, place, capsys, arguments, code, message):
        (place / "broken.json").write_text("{")
        (place / "broken.db").write_text("no database at all " * 100)
        Store().export("out.json")
        Store("empty.db").forget()
        assert message in fails(capsys, code, "store", *arguments)

    def test_store_exports_table_to_train_on(self, filled, place, capsys):
        assert main(["store", "softmax", "--export", "runs.parquet"]) == 0
        assert "runs.parquet: 15 runs of " in capsys.readouterr().out
        assert run_json(capsys, "train", "runs.parquet", "--out", "p")["out"] == "p"
        message = "foretune store --store tuned.db --export tuned.parquet"
        assert message in fails(capsys, 1, "train", "tuned.db", "--out", "q")

    def test_store_table_has_specs_of_this_machine(self, filled, place):
        cpu = local_cpu(measure=False)
        here = Subject("softmax", "33", cpu.name, "foretune 0.1.0")
        filled.put(here, rows(here, "2026-03-01T00:00:00+00:00", sizes=(64,)))
        assert main(["store", "--export", "runs.parquet"]) == 0
        runs = read_runs("runs.parquet")
        local = runs["device"] == cpu.name
        assert local.sum() == 3
        assert (runs["device.cores"][local] == cpu.specs["cores"]).all()
        assert runs["device.cores"][~local].isna().all()

    @pytest.mark.parametrize(
        "arguments",
        [
            ["store"],
            ["store", "softmax"],
            ["store", "--export", "out.json"],
            ["store", "--export", "out.parquet"],
            ["store", "softmax", "--forget"],
            ["export", "--kernel", "softmax", "--out", "f.py"],
        ],
    )
    @pytest.mark.parametrize("store", [[], ["--store", "deep/none.db"]])
    def test_store_reading_makes_no_file(self, place, capsys, arguments, store):
        printed = fails(capsys, 1, *arguments, *store)
        assert (
            f"{'none.db' if store else 'tuned.db'} does not exist: nothing has been tuned"
            in printed
        )
        assert list(place.iterdir()) == []

    def test_store_tables_fit_80_columns(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        long = Subject(
            "fused_recurrent_gated_delta_rule_fwd_kernel",
            "9f3a4c5d6e7f",
            "NVIDIA H100 80GB HBM3",
            "foretune 0.1.0, triton 3.9.0",
        )
        special = " ".join(f"stride_{i}:16" for i in range(12))
        for n in (64, 128):
            problem = Problem({"n": n, "x.dtype": "float16", "specialized": special})
            config = Configuration(BLOCK=64, num_warps=4, num_stages=3, num_ctas=1)
            ran = Measurement(long.kernel, problem, config, long.device, Status.OK, 1.0)
            Store().put(long, [ran])
            Store().choose(long, problem, Choice(config, 1, 0.0, "measured"))
        for asked in ([], [long.kernel], [long.kernel, "--problem", "n=64"]):
            assert main(["store", *asked]) == 0
            out = capsys.readouterr().out
            lines = [line for line in out.splitlines() if not line.endswith("tuned.db")]
            assert all(len(line) <= 80 for line in lines), out
            assert len(lines) <= 11
        assert "str…" in out
        assert "stride_2" not in out


class TestVllm:
    @pytest.fixture
    def file(self, place):
        content = {"triton_version": "3.5.0", "1": BLOCKS, "64": {**BLOCKS, "num_warps": 8}}
        (place / B200).write_text(json.dumps(content, indent=4) + "\n")
        return place / B200

    def test_store_vllm_file_round_trip(self, file, place, capsys):
        printed = run_json(capsys, "store", "--merge", B200)["imported"][0]
        assert (printed["kernel"], printed["device"], printed["choices"]) == (
            "fused_moe",
            "NVIDIA B200",
            2,
        )
        printed = run_json(capsys, "store", "fused_moe", "--export", f"back/{B200}")
        assert printed["tokens"] == 2
        assert (place / printed["out"]).read_bytes() == file.read_bytes()

    def test_store_vllm_file_joins_known_kernel(self, file, capsys):
        known = Problem(tokens=1, E=128, N=1024, top_k=8)
        Store().choose(MOE, known, Choice(Configuration(BLOCKS), 8, 0.0, "measured"))
        names = ["--map", "tokens=M", "--problem", "top_k=8"]
        assert main(["store", "--merge", B200, *names]) == 0
        assert "1 choices of fused_moe on NVIDIA B200, 1 already known" in capsys.readouterr().out
        assert Store().choice(MOE, Problem(tokens=64, E=128, N=1024, top_k=8)) is not None
        printed = run_json(capsys, "store", "fused_moe", "--export", B200, *names)
        assert printed["tokens"] == 2

    def test_store_vllm_file_of_quantized_layer(self, capsys):
        problem = Problem(M=8, E=16, N=512, dtype="fp8_w8a8", block_n=128, block_k=64)
        Store().choose(MOE, problem, Choice(Configuration(BLOCKS), 8, 0.0, "measured"))
        name = "E=16,N=512,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128,64].json"
        printed = run_json(capsys, "store", "--export", f"there/{name}")
        assert printed["out"] == f"there/{name}"

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["--merge", "E=x,N=2,device_name=y.json"], 2, "is not a name of vLLM's tuned"),
            (["--merge", B200, "--map", "M"], 2, "--map 'M' is not of the form NAME=VALUE"),
            (["--merge", B200, "--device", "NVIDIA H100"], 2, "is for NVIDIA B200, not"),
            (["--export", B200.replace("128", "1")], 2, "no choice for M=1,E=1,N=1024 with any M"),
        ],
    )
    def test_mistakes_are_one_line(self, file, capsys, arguments, code, message):
        Store().choose(MOE, Problem(M=1), Choice(Configuration(BLOCKS), 8, 0.0, "measured"))
        if "NVIDIA H100" in arguments:
            h100 = Subject("fused_moe", "aa", "NVIDIA H100", "")
            Store().choose(h100, Problem(M=1), Choice(Configuration(BLOCKS), 8, 0.0, "measured"))
        assert message in fails(capsys, code, "store", *arguments)


class TestExport:
    def test_export_function_from_run_table(self, filled, place, capsys):
        write_runs("runs.parquet", filled.runs(subjects=[SUBJECT]))
        printed = run_json(capsys, "export", "runs.parquet", "--out", "deep/choose.py")
        assert (printed["kernel"], printed["device"], printed["problems"]) == (
            "softmax",
            "NVIDIA H200",
            4,
        )
        assert printed["same"]["function"]["kept"] > printed["same"]["single"]["kept"]
        assert 0 < printed["held_out"]["function"]["kept"] <= 1
        names = {}
        exec((place / "deep/choose.py").read_text(), names)
        assert names["choose"](n=64) == {"BLOCK": 64}
        assert names["choose"](4096) == {"BLOCK": 1024}

    def test_export_prints_shares(self, filled, capsys):
        arguments = ["export", "--store", "tuned.db", "--kernel", "softmax", "--out", "f.py"]
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert "softmax on NVIDIA H200: share of the best time kept" in out
        assert "the single best configuration" in out
        assert "2 configurations, 3 leaves; knowing the best of them" in out
        assert all(len(line) <= 80 for line in out.splitlines())
        assert out.endswith("function: f.py\n")

    def test_export_default_store_with_one_kernel(self, filled, capsys):
        assert run_json(capsys, "export", "--out", "f.py")["kernel"] == "softmax"
        message = "tuned.db holds nothing yet: tune a kernel, or give run tables"
        filled.forget()
        assert message in fails(capsys, 2, "export", "--out", "f.py")

    def test_export_help_is_wrapped_once(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        assert main(["export", "--help-all"]) == 0
        lines = capsys.readouterr().out.splitlines()
        (first,) = (i for i, line in enumerate(lines) if "The command prints" in line)
        assert lines[first + 1].split()[:3] == ["on", "the", "same"]
        assert len(lines[first + 1].split()) > 6

    def test_export_uses_newest_code(self, filled, capsys):
        arguments = ["--kernel", "softmax", "--out", "f.py"]
        assert run_json(capsys, "export", "--store", "tuned.db", *arguments)["problems"] == 4
        filled.put(OLD, rows(OLD, "2027-01-01T00:00:00+00:00", sizes=(64,)))
        printed = run_json(capsys, "export", "--store", "tuned.db", *arguments)
        assert printed["problems"] == 1
        assert printed["held_out"] == {"function": None, "single": None}

    def test_export_names_unmeasured_choices(self, filled, capsys):
        rare = Configuration(BLOCK=999)
        best = [
            Measurement("softmax", Problem(n=n), rare, SUBJECT.device, Status.OK, 0.1)
            for n in (64, 256, 1024)
        ]
        filled.put(SUBJECT, best)
        printed = ["export", "--store", "tuned.db", "--kernel", "softmax", "--out", "f.py"]
        assert main([*printed, "--max-configs", "1"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "on 1 of 4 same problems its choice was not measured; if it failed there" in out

    def test_export_writes_optuna_studies(self, filled, capsys):
        write_runs("runs.parquet", filled.runs("softmax"))
        printed = run_json(capsys, "export", "runs.parquet", "--optuna", "sqlite:///s.db")
        assert len(printed["studies"]) == 4
        imported = ("import", "s.db", "--format", "optuna", "--out", "back.parquet")
        assert run_json(capsys, *imported)["rows"] == len(filled.runs("softmax"))

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            ([], 2, "tuned.db holds fused_moe, softmax: name one with --kernel"),
            (["--store", "none.db", "--kernel", "softmax"], 1, "none.db does not exist: nothing"),
            (["--store", "tuned.db", "--kernel", "gemm"], 2, "unknown kernel in this store 'gemm'"),
            (["runs.parquet", "--store", "tuned.db"], 2, "give either run tables or --store"),
            (["--store", "tuned.db"], 2, "tuned.db holds fused_moe, softmax: name one with --kern"),
            (["--store", "tuned.db", "--kernel", "fused_moe"], 2, "but no measurements"),
            (
                ["--store", "tuned.db", "--kernel", "softmax", "--device", "H100"],
                2,
                "unknown device of softmax in this store 'H100'",
            ),
            (["nothing.parquet"], 1, "nothing.parquet does not exist"),
            (["runs.parquet", "--optuna", "sqlite:///s.db"], 2, "give --out FILE.py"),
            (["runs.parquet", "--kernel", "gemm"], 2, "unknown kernel in these files 'gemm'"),
            (["runs.parquet", "--device", "H100"], 2, "unknown device in these files 'H100'"),
            (["runs.parquet", "--max-configs", "0"], 2, "--max-configs 0 leaves nothing"),
            (["runs.parquet", "--objective", "energy"], 2, "no run has a power_w"),
            (["runs.parquet", "--group", "problem.K"], 2, "unknown group 'problem.K'"),
            (["runs.parquet", "--out", "runs.parquet/f.py"], 1, "cannot write runs.parquet/f.py"),
        ],
    )
    def test_mistakes_are_one_line(self, filled, capsys, arguments, code, message):
        filled.choose(MOE, Problem(M=1), Choice(Configuration(BLOCKS), 8, 0.0, "measured"))
        write_runs("runs.parquet", filled.runs("softmax"))
        out = [] if "--out" in arguments else ["--out", "f.py"]
        assert message in fails(capsys, code, "export", *arguments, *out)
