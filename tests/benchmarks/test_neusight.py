"""NeuSight's tables of operators."""

import pytest
from neusight import convert, main

from foretune.datasets import read_runs
from foretune.errors import RunTableError

NEUSIGHT = """OPName,Latency,Device,Torch Version,CUDNN Version,Kernel Name,Grid x,Grid y,Grid z,\
Block x,Block y,Block z,CUDA Version,"""
PLACE = 'Tesla V100-PCIE-32GB,p2.1.0,8902,"void k<float, 4>(int)",32,2,1,128,4,1,cu121'


def neusight(tmp_path, name, columns, *rows):
    path = tmp_path / f"{name}.csv"
    path.write_text("\n".join([NEUSIGHT + columns, *rows]))
    return convert([path])


def test_products_of_neusight(tmp_path):
    rows = (f"bmm,0.5,{PLACE},8,100,200,300", f"linear,0.25,{PLACE},8,100,200,300")
    runs = neusight(tmp_path, "bmm", "B,M,N,K", *rows).runs
    sizes = [[r[f"problem.{n}"] for n in ("batch", "M", "N", "K")] for _, r in runs.iterrows()]
    # Theirs is (B, M, N) times (B, N, K): N is summed over; a linear layer takes all rows at once.
    assert sizes == [[8, 100, 300, 200], [1, 800, 300, 200]]
    row = runs.iloc[0]
    assert (row["kernel"], row["config.format"], row["time_ms"]) == ("gemm", "fp32", 0.5)
    assert (row["device"], row["environment"]) == ("Tesla V100-PCIE-32GB", "torch 2.1.0 cu121")
    assert (row["static.grid_x"], row["static.block_y"]) == (32, 4)


def test_other_operators_of_neusight(tmp_path):
    rows = [f"{op},{i},{PLACE},4096,{i}" for i, op in enumerate(("ln", "softmax", "ADDU", "gelu"))]
    done = neusight(tmp_path, "vec", "B,H", *rows)
    assert done.rejected == {"time is zero": 1}
    assert done.runs["kernel"].tolist() == ["softmax", "elementwise", "elementwise"]
    assert done.runs["problem.op"].tolist()[1:] == ["addu", "gelu"]
    assert done.runs["problem.rows"].tolist() == [4096] * 3
    assert done.runs["problem.columns"].tolist() == [1, 2, 3]
    done = neusight(tmp_path, "ln", "B,H", f"ln,1.0,{PLACE},8,1024")
    assert done.runs[["kernel", "problem.op"]].iloc[0].tolist() == ["norm", "layer_norm"]
    columns = "B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding"
    done = neusight(tmp_path, "conv", columns, f"conv,1.0,{PLACE},8,3,64,7,224,2,3")
    assert done.runs[["kernel", "problem.filter", "problem.stride"]].iloc[0].tolist() == [
        "conv",
        7,
        2,
    ]


def test_neusight_without_sizes(tmp_path):
    with pytest.raises(RunTableError, match=r"NeuSight's bmm: column 'M' is missing"):
        neusight(tmp_path, "bmm", "B,H", f"bmm,1.0,{PLACE},8,3")


def test_files_become_a_run_table(tmp_path, capsys):
    neusight(tmp_path, "bmm", "B,M,N,K", f"bmm,0.5,{PLACE},8,100,200,300")
    main([str(tmp_path / "bmm.csv"), "--out", str(tmp_path / "runs.parquet")])
    assert "1 runs of gemm" in capsys.readouterr().out
    assert read_runs(tmp_path / "runs.parquet")["time_ms"].tolist() == [0.5]
