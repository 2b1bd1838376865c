"""The folder of a saved predictor: `models/card.py`."""

import json
from pathlib import Path

import numpy as np
import pytest

from foretune.errors import ForetuneError, OutputError, PredictorError
from foretune.models import Predictor


@pytest.fixture(scope="module")
def predictor(_toy_table):
    return Predictor(parameters={"rounds": 5}).fit(_toy_table)


def test_numbers_of_numpy_are_saved_as_plain_ones(toy_runs, tmp_path):
    parameters = {"rounds": np.int64(5), "rate": np.float32(0.5)}
    Predictor(seed=np.int64(3), parameters=parameters).fit(toy_runs).save(tmp_path / "p")
    loaded = Predictor.load(tmp_path / "p")
    assert (loaded.seed, loaded.parameters) == (3, {"rounds": 5, "rate": 0.5})
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_save_unwritable_folder_is_refused(predictor, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write the predictor"):
        predictor.save(tmp_path / "file")
    with pytest.raises(OutputError, match="cannot write the predictor"):
        predictor.save(tmp_path / "file" / "model")


def test_save_leaves_other_files_alone(predictor, tmp_path):
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="it contains other files"):
        predictor.save(folder)
    (folder / "notes.txt").rename(tmp_path / "notes.txt")
    predictor.save(folder)
    (tmp_path / "notes.txt").rename(folder / "notes.txt")
    (folder / "time_ms" / "old.json").write_text("{}")
    (folder / "calibration_runs.csv").write_text("a,b")
    predictor.save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "calibration_runs.csv").exists()
    assert not (folder / "time_ms" / "old.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_save_follows_link(predictor, tmp_path, monkeypatch):
    predictor.save(tmp_path / "p")
    (tmp_path / "link").symlink_to("p")
    predictor.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "p"]
    monkeypatch.chdir(tmp_path / "p")
    predictor.save(".")
    assert Predictor.load(tmp_path / "p").targets_.keys() == predictor.targets_.keys()


def test_save_failure_keeps_previous_predictor(predictor, tmp_path, monkeypatch):
    """What was there stays if the new one cannot be put in its place."""
    folder = tmp_path / "p"
    predictor.save(folder)
    replace = Path.replace

    def fails(path, target):
        if path.name.startswith(".p.") and not path.name.endswith(".before"):
            raise OSError("no")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OutputError):
        predictor.save(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    Predictor.load(folder)


def test_save_before_fit_is_refused(tmp_path):
    with pytest.raises(Exception, match="not fitted"):
        Predictor().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def edited(folder, **values):
    card = json.loads((folder / "predictor.json").read_text())
    card.update(values)
    (folder / "predictor.json").write_text(json.dumps(card))


def tree(folder):
    return folder / "time_ms" / "tree.boosted.npz"


DAMAGE = {
    "no card": (lambda f: (f / "predictor.json").unlink(), "holds no predictor .*foretune train"),
    "half a card": (
        lambda f: (f / "predictor.json").write_text('{"format": 1,'),
        "holds no predictor",
    ),
    "another card": (lambda f: (f / "predictor.json").write_text("[]"), "holds no predictor"),
    "an empty card": (lambda f: (f / "predictor.json").write_text("{}"), "another version"),
    "other format": (lambda f: edited(f, format=1), "another version of Foretune: train it again"),
    "other features": (lambda f: edited(f, features_version=99), "another version of Foretune"),
    "unknown model": (lambda f: edited(f, model="crystal_ball"), "model 'crystal_ball', which is"),
    "no targets": (lambda f: edited(f, targets=None), "is damaged"),
    "no range": (lambda f: edited(f, range=None), "is damaged"),
    "other targets": (lambda f: edited(f, targets=["beauty"]), "is damaged"),
    "no kernel": (lambda f: edited(f, family="Matrix"), "is unknown here: install its package"),
    "no runs": (lambda f: (f / "runs.parquet").unlink(), "runs.parquet does not exist"),
    "half the runs": (
        lambda f: (f / "runs.parquet").write_bytes((f / "runs.parquet").read_bytes()[:200]),
        "runs.parquet is not a readable Parquet file",
    ),
    "no target": (lambda f: (f / "time_ms" / "target.json").unlink(), "is damaged"),
    "no spread": (lambda f: (f / "time_ms" / "spread.json").unlink(), "is damaged"),
    "no columns": (lambda f: edited(f, columns=None), "is damaged"),
    "no model": (lambda f: tree(f).unlink(), "is damaged"),
    "half a model": (lambda f: tree(f).write_bytes(tree(f).read_bytes()[:500]), "is damaged"),
    "no validity": (lambda f: (f / "valid.json").unlink(), "is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_load_damaged_folder_is_refused(predictor, tmp_path, damage):
    hurt, message = DAMAGE[damage]
    predictor.save(tmp_path)
    hurt(tmp_path)
    with pytest.raises(ForetuneError, match=message) as caught:
        Predictor.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_load_damaged_forest_is_refused(toy_runs, tmp_path):
    Predictor("random_forest", ("time_ms",)).fit(toy_runs).save(tmp_path)
    (tmp_path / "time_ms" / "tree.npz").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(PredictorError, match="is damaged"):
        Predictor.load(tmp_path)


def test_load_missing_folder_is_refused(tmp_path):
    with pytest.raises(PredictorError, match="holds no predictor"):
        Predictor.load(tmp_path / "none")
