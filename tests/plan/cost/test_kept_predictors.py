"""Predictors of operators: trained once, kept, trained anew when rows or code change."""

import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest

from foretune.plan.cost import operator_predictor
from foretune.plan.cost.operator_predictor import MAX_PREDICTORS, TrainedPredictorCache, TrainingSet


def lesson(slower: float = 1.0, name: str = "sum-here") -> TrainingSet:
    size = 2.0 ** np.arange(4, 24)
    runs = pd.DataFrame(
        {
            "kernel": "sum",
            "device": "here",
            "status": "ok",
            "problem.size": size,
            "time_ms": slower * (0.01 + size / 1e6),
        }
    )
    return TrainingSet(name, runs)


class Told:
    """Keeps what is said about progress."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.notes: list[str] = []
        self.said: list[str] = []

    def start(self, stage: str, total: int) -> None:
        self.stages.append((stage, total))

    def advance(self, note: str = "") -> None:
        self.notes.append(note)

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def draw(self):
        yield self


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def kept(tmp_path, told) -> TrainedPredictorCache:
    return TrainedPredictorCache(told.draw, tmp_path / "cache")


def answer(kept: TrainedPredictorCache, one: TrainingSet) -> np.ndarray:
    (predictor,) = kept.load_or_train([one])
    return predictor.predict(one.runs.drop(columns="time_ms"))["time_ms"].to_numpy()


def test_training_happens_once_and_says_where_it_is_kept(kept, told, tmp_path):
    first = answer(kept, lesson())
    assert told.stages == [("training on 20 measured operators (once)", 1)]
    assert told.notes == ["sum-here"]
    assert str(tmp_path / "cache") in told.said[0]
    again = answer(TrainedPredictorCache(told.draw, tmp_path / "cache"), lesson())
    assert len(told.stages) == 1
    assert again == pytest.approx(first)


def test_several_are_one_stage(kept, told):
    kept.load_or_train([lesson(), lesson(2.0, "other")])
    assert told.stages == [("training on 40 measured operators (once)", 2)]
    assert sorted(told.notes) == ["other", "sum-here"]


def test_predictor_cache_other_rows_are_learned_again(kept, told):
    slow = answer(kept, lesson(3.0)) / answer(kept, lesson())
    assert len(told.stages) == 2
    assert np.median(slow) == pytest.approx(3.0, rel=0.05)


def test_another_version_of_the_code_learns_anew(kept, told, monkeypatch):
    answer(kept, lesson())
    monkeypatch.setattr(operator_predictor, "packages_hash", lambda *packages: "changed")
    answer(kept, lesson())
    assert len(told.stages) == 2


@pytest.mark.parametrize("content", ["", "{}"])
def test_predictor_cache_damaged_file_is_replaced(kept, told, tmp_path, content):
    first = answer(kept, lesson())
    (card,) = (tmp_path / "cache").rglob("operators.json")
    card.write_text(content)
    assert answer(kept, lesson()) == pytest.approx(first)
    answer(kept, lesson())
    assert len(told.stages) == 2


def test_predictor_cache_file_instead_of_folder_costs_only_time(told, tmp_path):
    (tmp_path / "cache").write_text("not a folder")
    kept = TrainedPredictorCache(told.draw, tmp_path / "cache")
    assert (answer(kept, lesson()) > 0).all()
    assert (answer(kept, lesson()) > 0).all()
    assert len(told.stages) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_predictor_cache_unwritable_folder_costs_only_time(told, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    assert (answer(TrainedPredictorCache(told.draw, tmp_path / "cache"), lesson()) > 0).all()


def test_predictor_cache_keeps_few_per_name(kept, tmp_path):
    for slower in range(1, MAX_PREDICTORS + 3):
        answer(kept, lesson(slower))
    answer(kept, lesson(name="sum-here-too"))
    names = [path.name.rpartition("-")[0] for path in (tmp_path / "cache").iterdir()]
    assert sorted(names) == ["sum-here"] * MAX_PREDICTORS + ["sum-here-too"]


TRAIN = """
import sys
from pathlib import Path
import pandas as pd
from foretune.plan.cost.operator_predictor import TrainedPredictorCache, TrainingSet
runs = pd.read_parquet(sys.argv[1])
cache = TrainedPredictorCache(folder=Path(sys.argv[2]))
predictor, = cache.load_or_train([TrainingSet("sum-here", runs)])
print(predictor.predict(runs)["time_ms"].sum())
"""


def test_predictor_cache_two_processes(tmp_path, kept):
    lesson().runs.to_parquet(tmp_path / "runs.parquet")
    command = [sys.executable, "-c", TRAIN, str(tmp_path / "runs.parquet"), str(tmp_path / "cache")]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sums = [float(worker.communicate()[0]) for worker in workers]
    assert sums == pytest.approx([answer(kept, lesson()).sum()] * 2)
    assert len(list((tmp_path / "cache").iterdir())) == 1
