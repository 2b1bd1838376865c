"""Kubernetes manifests: `plan/serve/kubernetes.py`."""

import json
from dataclasses import replace

import pytest

from foretune.cli import main
from foretune.errors import UsageError
from foretune.plan import Formats, Layout, Workload, find_system
from foretune.plan.cost import tables
from foretune.plan.serve.deployments.deployment import Deployment, Pools
from foretune.plan.serve.kubernetes import manifest


def deploy(model, layout=None, system="h100_sxm", pools=None):
    return Deployment(
        model,
        find_system(system),
        "vllm",
        layout or Layout(2),
        Formats(),
        Workload(512, 128),
        8,
        pools,
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_manifest_of_each_engine(small, engine):
    items = json.loads(manifest(deploy(replace(small, name="me/Small_1.5")), engine, 3))["items"]
    kinds = {item["kind"]: item for item in items}
    spec = kinds["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert kinds["Deployment"]["metadata"]["name"] == f"{engine}-small-1-5"
    assert spec["replicas"] == 3
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert container["command"][-2:] == ["--host", "0.0.0.0"]
    assert "8000" in container["command"]
    assert kinds["Service"]["spec"]["selector"] == spec["selector"]["matchLabels"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    files = kinds.get("ConfigMap", {}).get("data", {})
    assert list(files) == (["trtllm.yaml"] if engine == "trtllm" else [])
    assert all(f"/etc/engine/{file}" in container["command"] for file in files)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"layout": Layout(2, 8)}, "span several nodes"),
        ({"system": "mi300x"}, "not mi300x"),
        ({"pools": Pools(Layout(2), 1, 1)}, "leave out --pools"),
    ],
)
def test_manifest_unsupported_deployment_is_refused(small, changes, why):
    with pytest.raises(UsageError, match=why):
        manifest(deploy(replace(small, layers=8), **changes), "vllm")


def test_plan_command_names_checkpoint_that_pods_cannot_load(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "default_folders", list)
    sizes = {"num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 4}
    sizes |= {"vocab_size": 1000, "intermediate_size": 1024}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    file = str(tmp_path / "manifest.json")
    question = ["--system", "h100_sxm", "--gpus", "1", "--isl", "64", "--osl", "8"]
    for formats, served in (("bf16", str(tmp_path)), ("nvfp4", "CHECKPOINT_IN_NVFP4")):
        named = ["--formats", formats, "--kubernetes", file]
        assert main(["plan", str(tmp_path), *question, *named]) == 0
        found = "".join(capsys.readouterr().out.split())
        assert f"replace{served}withacheckpointthatpodscanload,thenkubectl" in found
