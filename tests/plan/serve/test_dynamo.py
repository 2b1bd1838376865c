"""Graphs for Dynamo: their workers, GPUs and flags are those of the plan."""

import json
from dataclasses import replace

import pytest

from foretune.errors import UsageError
from foretune.plan import Formats, Layout, Workload, find_system
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.launching import launch
from foretune.plan.serve.manifests import BOOTSTRAP_PORT, CONFIG_DIRECTORY, WORKER_OPTIONS, graph

ENGINES = ("vllm", "sglang", "trtllm")
POOLS = Pools(Layout(4), 3, 2)
ROLE = "--disaggregation-mode"


def deploy(model, layout=None, system="h100_sxm", pools=None, formats=None):
    return Deployment(
        model, find_system(system), "vllm", layout or Layout(2), formats or Formats(),
        Workload(512, 128), 8, pools,
    )  # fmt: skip


def read(text):
    """Return the graph among the documents of a file, and the files of its configuration map."""
    document = json.loads(text)
    items = document["items"] if document["kind"] == "List" else [document]
    kinds = {item["kind"]: item for item in items}
    return kinds["DynamoGraphDeployment"], kinds.get("ConfigMap", {}).get("data", {})


def workers(text):
    services = read(text)[0]["spec"]["services"]
    return {name: s for name, s in services.items() if s["componentType"] == "worker"}


def args(service):
    return service["extraPodSpec"]["mainContainer"]["args"]


def gpus(text):
    return sum(
        s["replicas"] * s.get("multinode", {}).get("nodeCount", 1)
        * int(s["resources"]["limits"]["gpu"])
        for s in workers(text).values()
    )  # fmt: skip


def flags(words):
    """Return flags with their values, without those that only a server or a worker has."""
    start = next(i for i, word in enumerate(words) if word.startswith("--"))
    found, name = {}, ""
    for word in words[start:]:
        if word.startswith("--"):
            name = WORKER_OPTIONS.get(word, word)
            found[name] = []
        else:
            found[name].append(word.removeprefix(f"{CONFIG_DIRECTORY}/"))
    own = ("--port", "--model", "--model-path", "--host", ROLE, "--disaggregation-bootstrap-port")
    return {name: values for name, values in found.items() if name not in own}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pools", [None, POOLS], ids=["one pool", "pools"])
def test_a_graph_asks_for_what_was_planned(small, engine, pools):
    planned = deploy(replace(small, name="me/Small_1.5", heads=8, kv_heads=4), pools=pools)
    text, started = graph(planned, engine, 2), launch(planned, engine)
    made, files = read(text)
    assert (made["apiVersion"], made["metadata"]["name"]) == (
        "nvidia.com/v1alpha1", f"{engine}-small-1-5"
    )  # fmt: skip
    assert made["spec"]["backendFramework"] == engine
    assert gpus(text) == 2 * planned.gpus
    found = workers(text)
    expected = (
        {"prefill": (6, "prefill"), "decode": (4, "decode")} if pools else {"worker": (2, None)}
    )
    assert {
        name: (s["replicas"], s.get("subComponentType")) for name, s in found.items()
    } == expected
    first = {"prefill": 0, "decode": 3, "worker": 0}
    for name, service in found.items():
        assert flags(args(service)) == flags(started.commands[first[name]])
        assert service["extraPodSpec"]["mainContainer"]["command"][-1] == f"dynamo.{engine}"
        assert "me/Small_1.5" in args(service)
        assert "--port" not in args(service)
        assert (ROLE in args(service)) == bool(pools)
        if pools:
            assert args(service)[args(service).index(ROLE) + 1] == name
    (frontend,) = (s for s in made["spec"]["services"].values() if s not in found.values())
    assert frontend["componentType"] == "frontend"
    assert "args" not in frontend["extraPodSpec"]["mainContainer"]
    wanted = {"trtllm.yaml"} if pools is None else {"prefill.yaml", "decode.yaml"}
    assert set(files) == (wanted if engine == "trtllm" else set())


def test_files_are_where_workers_look_for_them(small):
    planned = deploy(small, pools=POOLS, formats=Formats("fp8", kv="fp8"))
    made, files = read(graph(planned, "trtllm"))
    assert files["prefill.yaml"] == launch(planned, "trtllm").files["prefill.yaml"]
    for name, service in workers(graph(planned, "trtllm")).items():
        pod = service["extraPodSpec"]
        assert f"{CONFIG_DIRECTORY}/{name}.yaml" in args(service)
        (mount,), (volume,) = pod["mainContainer"]["volumeMounts"], pod["volumes"]
        assert (mount["mountPath"], mount["name"]) == (CONFIG_DIRECTORY, volume["name"])
        assert volume["configMap"]["name"] == made["metadata"]["name"]
    assert (
        "CHECKPOINT_IN_FP8: small, quantized" in made["metadata"]["annotations"]["foretune/notes"]
    )


def test_pools_of_sglang_meet_in_their_pods(small):
    for service in workers(graph(deploy(small, pools=POOLS), "sglang")).values():
        words = args(service)
        assert words[words.index("--disaggregation-bootstrap-port") + 1] == BOOTSTRAP_PORT
        assert words[-2:] == ["--host", "0.0.0.0"]


def test_pools_of_vllm_hand_over_caches(small):
    for service in workers(graph(deploy(small, pools=POOLS), "vllm")).values():
        assert "NixlConnector" in args(service)[args(service).index("--kv-transfer-config") + 1]


def test_a_worker_of_several_nodes(small):
    text = graph(deploy(replace(small, layers=8), Layout(2, 8)), "sglang")
    (worker,) = workers(text).values()
    assert worker["multinode"] == {"nodeCount": 2}
    assert worker["resources"] == {"limits": {"gpu": "8"}}
    assert gpus(text) == 16


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"layout": Layout(2, 6)}, "does not fill nodes of 8"),
        ({"system": "mi300x"}, "not for mi300x"),
    ],
)
def test_what_no_graph_can_be(small, changes, why):
    with pytest.raises(UsageError, match=why):
        graph(deploy(replace(small, layers=8), **changes), "vllm")
