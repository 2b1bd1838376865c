"""Weights and prefixes in host memory: request, plan, report, simulation and commands."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from foretune.cli import main
from foretune.errors import UsageError
from foretune.plan import Formats, Layout, PlanRequest, Workload, describe_model, find_system, plan
from foretune.plan.cost.memory import GIB, USABLE_SHARE, max_requests, rank_memory
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.describe.layout import Offload
from foretune.plan.serve.candidates import predict
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.explanation import notes, sentences
from foretune.plan.serve.launching import launch
from foretune.plan.serve.plan_json import plan_to_json
from foretune.plan.serve.report import write_plan_report
from foretune.plan.serve.simulation import simulate

H100 = find_system("h100_sxm")
LOAD = Workload(2048, 256)
LARGE = describe_model("meta-llama/Llama-3.1-70B")
MODEL = describe_model("meta-llama/Llama-3.1-8B")
CLOCKS = StepTimerFactory(None)


def deploy(offload=None, model=MODEL, backend="vllm", load=LOAD, layout=None, requests=8):
    return Deployment(
        model,
        H100,
        backend,
        layout or Layout(),
        Formats(),
        load,
        requests,
        offload=offload or Offload(),
    )


def planned(model=LARGE, gpus=1, formats=("bf16",), **more):
    request = PlanRequest(
        model=model,
        systems=(H100,),
        gpus=gpus,
        workload=LOAD,
        formats=tuple(Formats(kind) for kind in formats),
        **more,
    )
    return plan(request, CLOCKS)


def test_plan_offload_makes_large_model_fit():
    with pytest.raises(UsageError, match=r"offload weights to host memory: --offload (\d+)$") as e:
        planned()
    needed = int(str(e.value).rpartition(" ")[2])
    with pytest.raises(UsageError, match="does not fit"):
        planned(offload=Offload(needed - 1))
    made = planned(offload=Offload(needed))
    assert (made.candidates["offload_gib"] == needed).all()
    assert (made.candidates["memory_gib"] <= USABLE_SHARE * H100.memory_gib).all()
    assert (made.candidates["guessed"] > 0.9).all()
    text = "\n".join(sentences(made))
    assert f"{needed} GiB of each GPU's weights in host memory" in text
    assert "limited by the link to host memory" in text
    assert any("h100_sxm 64 GB/s" in note for note in notes(made))


def test_plan_zero_offload_changes_nothing():
    plain = planned(MODEL)
    none = planned(MODEL, offload=Offload())
    pd.testing.assert_frame_equal(plain.candidates, none.candidates)
    some = planned(MODEL, offload=Offload(4)).candidates
    without = some[some["offload_gib"] == 0].reset_index(drop=True)
    columns = [name for name in without if name not in ("number", "pareto")]
    pd.testing.assert_frame_equal(without[columns], plain.candidates[columns])


def test_plan_offloaded_weights_leave_memory_for_requests():
    here = deploy()
    there = deploy(Offload(4))
    assert there.offloaded_weight_bytes == 4 * GIB
    each = 2304 * 32 * 8 * 2 * 128 * 2  # a request's keys and values
    assert there.max_requests - here.max_requests == pytest.approx(4 * GIB / each, abs=1)
    held = rank_memory(
        MODEL,
        Layout(),
        Formats(),
        LOAD,
        there.max_requests,
        offloaded_bytes=there.offloaded_weight_bytes,
    )
    usable = USABLE_SHARE * H100.memory_gib
    assert usable - 1.1 * each / GIB < held.gib <= usable
    assert there.max_requests == max_requests(
        MODEL, Layout(), Formats(), LOAD, H100.memory_gib, offloaded_bytes=4 * GIB
    )


def test_predict_steps_wait_for_offloaded_weights():
    here, there = analytic_times([deploy(), deploy(Offload(4))], CLOCKS).to_dict("records")
    wait = H100.transfer_ms(4 * GIB)
    for name in ("decode", "alone", "prompt"):
        assert there[name] - here[name] == pytest.approx(wait)
    assert there["prefill"] - here["prefill"] == pytest.approx(wait / here["prompts_per_step"])
    assert there["share_host"] == pytest.approx(wait / there["decode"])
    drawn = there["decode_energy_mj"] - here["decode_energy_mj"]
    assert drawn == pytest.approx(wait * here["awake_w"])
    assert there["guessed"] > 0.9


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_predict_more_offload_is_never_faster(backend):
    some = [deploy(Offload(gib), backend=backend) for gib in (0, 1, 2, 5, 12, 40)]
    table = predict(some, CLOCKS)
    assert table["tpot_ms"].is_monotonic_increasing
    assert table["ttft_ms"].is_monotonic_increasing
    assert table["memory_gib"].is_monotonic_decreasing
    assert table["offload_gib"].tolist()[:5] == [0, 1, 2, 5, 12]
    assert table["offload_gib"][5] < 15  # all layers


def test_simulate_steps_wait_for_offloaded_weights():
    here, there = (simulate(deploy(o), 1, CLOCKS) for o in (Offload(), Offload(4)))
    wait = H100.transfer_ms(4 * GIB)
    assert there.tpot_ms[50] - here.tpot_ms[50] == pytest.approx(wait, rel=0.1)


def test_predict_prefix_is_fetched_from_host():
    load = Workload(8192, 256, 6144)
    plain = deploy(load=load)
    fetch = H100.transfer_ms(6144 * 32 * 8 * 2 * 128 * 2)
    for backend, waited in (("vllm", fetch), ("sglang", fetch / 32)):
        here, there = predict(
            [
                replace(plain, backend=backend, offload=o)
                for o in (Offload(), Offload(cache_gib=20))
            ],
            CLOCKS,
        ).to_dict("records")
        assert there["ttft_ms"] - here["ttft_ms"] == pytest.approx(waited)
        assert there["tpot_ms"] == here["tpot_ms"]
        assert there["memory_gib"] == here["memory_gib"]


ON_DISK = Offload(cache_gib=20, disk_gib=100)
DISK_H100 = replace(H100, disk_gbps=2.0)
LONG = Workload(8192, 256, 6144)
PREFIX_BYTES = 6144 * 32 * 8 * 2 * 128 * 2


def test_prefix_on_disk_delays_the_first_token():
    in_memory = replace(deploy(Offload(cache_gib=20), load=LONG), backend="sglang")
    on_disk = replace(in_memory, offload=ON_DISK, system=DISK_H100)
    read_ms = PREFIX_BYTES / 2e6
    assert on_disk.disk_read_ms == pytest.approx(read_ms)
    wait = on_disk.exposed_fetch_ms(1e9) - in_memory.exposed_fetch_ms(1e9)
    assert wait == pytest.approx(read_ms)


@pytest.mark.parametrize(
    ("layout", "replicas", "reads"),
    [
        (Layout(), 1, 1),  # one rank, one file at a time
        (Layout(8), 1, 1),  # eight ranks read an eighth each
        (Layout(), 8, 8),  # eight replicas of a node share its disk
        (Layout(), 64, 8),  # those of other nodes have their own
    ],
)
def test_gpus_of_a_node_share_its_disk(layout, replicas, reads):
    shared = replace(deploy(ON_DISK, load=LONG, layout=layout), system=DISK_H100, replicas=replicas)
    assert shared.disk_ms_per_prompt == pytest.approx(reads * PREFIX_BYTES / 2e6)


def test_latent_caches_are_read_once_by_all_ranks():
    latent = describe_model("deepseek-ai/DeepSeek-V3")
    one, eight = (
        replace(deploy(ON_DISK, latent, load=LONG, layout=Layout(tp)), system=DISK_H100)
        for tp in (1, 8)
    )
    assert one.disk_read_ms == pytest.approx(eight.disk_read_ms)


def test_slow_disk_limits_throughput():
    fast, slow = (
        replace(
            deploy(ON_DISK, load=LONG, requests=64),
            backend="sglang",
            system=replace(H100, disk_gbps=gbps),
        )
        for gbps in (1000.0, 0.5)
    )
    table = predict([fast, slow], CLOCKS)
    per_s = table["requests_per_s"]
    disk_per_s = 0.5e9 / PREFIX_BYTES
    assert 0.7 * disk_per_s < per_s[1] < disk_per_s
    assert per_s[0] > 2 * per_s[1]


def test_plan_says_whether_the_disk_pays():
    for gbps, advice in ((50.0, "computing it would take"), (0.1, "leave the disk out")):
        request = PlanRequest(
            model=MODEL,
            systems=(replace(H100, disk_gbps=gbps),),
            gpus=1,
            workload=LONG,
            engine="sglang",
            formats=(Formats(),),
            offload=ON_DISK,
        )
        made = plan(request, CLOCKS)
        assert any(advice in note for note in notes(made))
        question = plan_to_json(made)["question"]
        assert question["offload_disk_gib"] == 100
        assert question["link_disk_gbps"] == gbps
        assert "link_host_gbps" not in question


def test_measured_link_replaces_the_data_sheet():
    measured = replace(H100, host_copy_gbps=10.0)
    assert measured.transfer_ms(1e9) == pytest.approx(100.0, rel=1e-3)
    assert H100.transfer_ms(1e9) == pytest.approx(1e3 / (0.87 * 64), rel=1e-3)
    request = PlanRequest(
        model=LARGE,
        systems=(measured,),
        gpus=1,
        workload=LOAD,
        formats=(Formats("bf16"),),
        offload=Offload(100),
    )
    text = "\n".join(notes(plan(request, CLOCKS)))
    assert "the measured rate of host links (h100_sxm 10 GB/s)" in text


def test_analytic_times_slow_link_limits_prefill():
    slow = replace(H100, host_gbps=1.0)
    load = Workload(8192, 256, 8000)
    (row,) = analytic_times(
        [replace(deploy(Offload(cache_gib=20), load=load), system=slow)], CLOCKS
    ).to_dict("records")
    assert row["prefill"] == pytest.approx(slow.transfer_ms(8000 * 32 * 8 * 2 * 128 * 2))


def test_report_names_data_in_host_memory(tmp_path):
    load = Workload(8192, 64, 6144)
    offload = Offload(4, 20)
    request = PlanRequest(
        model=MODEL,
        systems=(H100,),
        gpus=1,
        workload=load,
        formats=(Formats(),),
        offload=offload,
    )
    made = plan(request, CLOCKS)
    prefix = 6144 * 32 * 8 * 2 * 128 * 2
    held = f"host memory holds {20 * GIB / prefix:.0f} prefixes of 6,144 tokens"
    assert any(held in note for note in notes(made))
    write_plan_report(made, tmp_path / "report.html", CLOCKS)
    fact = "up to 4 GiB of weights per GPU and 20 GiB of cached prefixes per GPU"
    assert fact in (tmp_path / "report.html").read_text()
    asked = plan_to_json(made)["question"]
    assert (asked["offload_gib"], asked["offload_cache_gib"]) == (4, 20)


def told(offload, engine, load=LOAD, layout=None):
    plan = launch(deploy(offload, backend=engine, load=load, layout=layout), engine)
    return " ".join(plan.commands[0]), plan


def test_launch_offload_flags():
    both = Offload(4, 20)
    load = Workload(8192, 256, 6144)
    vllm, _ = told(both, "vllm", load, Layout(2))
    assert "--cpu-offload-gb 4 --kv-offloading-size 40 --kv-offloading-backend native" in vllm
    sglang, _ = told(both, "sglang", load)
    assert "--cpu-offload-gb 4 --cuda-graph-backend-decode disabled" in sglang
    assert "--enable-hierarchical-cache --hicache-size 21" in sglang
    assert "--cuda-graph-max-bs-decode" not in sglang
    _, trtllm = told(Offload(cache_gib=20), "trtllm", load)
    assert f'"host_cache_size": {20 * GIB}' in trtllm.files["trtllm.yaml"]
    assert "cannot offload weights" in launch(deploy(both), "trtllm").unsupported
    in_folder = replace(DISK_H100, disk_folder="/data/prefixes")
    on_disk = replace(deploy(ON_DISK, backend="sglang", load=load), system=in_folder)
    line = " ".join(launch(on_disk, "sglang").commands[0])
    assert "--page-size 64 --hicache-storage-backend file" in line
    assert "--hicache-storage-prefetch-policy wait_complete" in line
    assert f'{{"max_size":{100 * GIB},"file_storage_path":"/data/prefixes"}}' in line
    assert "only with other software" in launch(on_disk, "vllm").unsupported
    for engine in ("vllm", "sglang"):
        plain, _ = told(Offload(), engine)
        assert "offload" not in plain
        assert "hicache" not in plain


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"offload": Offload(4), "engine": "trtllm"}, "TensorRT-LLM cannot offload weights"),
        ({"offload": Offload(4), "pools": True}, "pools cannot be planned with offloading"),
        ({"offload": Offload(cache_gib=4)}, "add --prefix"),
        ({"offload": ON_DISK}, "use --backend sglang, or leave out --offload disk"),
        ({"offload": Offload(disk_gib=4), "engine": "sglang"}, "add --offload cache=GIB"),
    ],
)
def test_plan_request_unsupported_offload_is_refused(more, why):
    with pytest.raises(UsageError, match=why):
        planned(MODEL, **more)


@pytest.mark.parametrize("gib", [-1.0, float("inf"), float("nan")])
def test_offload_invalid_amount_is_refused(gib):
    with pytest.raises(UsageError, match="give 0 or more"):
        Offload(gib)


def test_plan_command_offloads(capsys, monkeypatch):
    from foretune.plan.cost import tables as operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)
    command = [
        "plan",
        LARGE.name,
        "--system",
        "h100_sxm",
        "--gpus",
        "1",
        "--formats",
        "bf16",
        "--isl",
        "2048",
        "--osl",
        "256",
    ]
    assert main([*command, "--offload", "100", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["question"]["offload_gib"] == 100
    assert answer["best"]["offload_gib"] > 60
    assert f"--cpu-offload-gb {answer['best']['offload_gib']:g} " in answer["commands"]["vllm"]
    assert "cannot offload weights" in answer["commands"]["trtllm"]
    assert main([*command, "--offload", "100"]) == 0
    assert "in host" in capsys.readouterr().out
    assert main(command) == 2
    assert "--offload" in capsys.readouterr().err


def test_plan_disk_of_unknown_rate_is_refused():
    with pytest.raises(UsageError, match="--link disk=GB/S, or --link disk=FOLDER"):
        PlanRequest(
            model=MODEL, systems=(H100,), gpus=1, workload=LONG, engine="sglang", offload=ON_DISK
        )


DISK_COMMAND = [
    *("plan", "serve", MODEL.name, "--system", "h100_sxm", "--gpus", "1", "--isl", "8192"),
    *("--osl", "256", "--prefix", "6144", "--backend", "sglang", "--formats", "bf16/bf16"),
    *("--offload", "cache=20", "--offload", "disk=100"),
]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--link", "disk=3500"], "give GB/s, 0.01 to 2000"),
        (["--link", "disk=fast"], "is not a rate or a folder"),
        (["--link", "host=there"], "is not a rate or 'here'"),
        (["--link", "nvme=3"], "key of --link"),
        (["--link", "disk=3", "--link", "disk=4"], "given twice"),
        (["--link", "disk=3", "--prove"], "the queue at a disk is not simulated"),
    ],
)
def test_plan_command_wrong_link_is_refused(more, why, capsys):
    assert main([*DISK_COMMAND, *more]) == 2
    assert why in " ".join(capsys.readouterr().err.split())


def test_plan_command_link_without_offload_is_refused(capsys):
    command = [text for text in DISK_COMMAND if "=" not in text and text != "--offload"]
    assert main([*command, "--link", "host=50"]) == 2
    assert "only --offload uses" in capsys.readouterr().err


def test_plan_command_measures_a_folder(tmp_path, capsys, monkeypatch):
    from foretune.collect import link_rates
    from foretune.plan.cost import tables as operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)
    measured = link_rates.LinkRate(2.0, 1.9, 2.1)
    monkeypatch.setattr(link_rates, "measure_disk", lambda folder: measured)
    assert main([*DISK_COMMAND, "--link", f"disk={tmp_path}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "replayed" not in answer
    assert str(tmp_path.resolve()) in answer["commands"]["sglang"]
    assert any("is read from disk in 403 ms" in note for note in answer["notes"])


def test_plan_with_prefixes_on_disk_and_no_price_names_the_price(capsys):
    command = [*DISK_COMMAND[:-4], "--offload", "cache=20", "--offload", "disk=100"]
    command[command.index("h100_sxm")] = "RTX 4090"
    assert main([*command, "--link", "disk=3", "--for", "cost"]) == 2
    assert "price" in capsys.readouterr().err
