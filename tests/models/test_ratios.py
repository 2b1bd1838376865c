"""The expert on ratios reads no sizes."""

import numpy as np

from foretune.models.experts import ScaleFreeExpert, scale_free_features

NAMES = ("problem.M", "problem.dtype=fp16", "device.cores", "alignment.M", "config.BLOCK_M",
         "log2_flops", "log2_intensity", "log2_steps")  # fmt: skip


def test_which_features_have_no_size():
    problems = np.array([0, 0, 1, 1])
    X = np.ones((4, len(NAMES)), dtype=np.float32)
    X[:, 5] = [3, 3, 4, 4]  # what the problem decides …
    X[:, 7] = [3, 4, 4, 5]  # … and what the configuration does, too
    kept = [NAMES[i] for i in scale_free_features(NAMES, X, problems)]
    assert kept == ["problem.dtype=fp16", "alignment.M", "config.BLOCK_M", "log2_intensity",
                    "log2_steps"]  # fmt: skip
    assert scale_free_features(["problem.M"], X[:, :1], problems).tolist() == [0]


def test_it_learns_and_comes_back_from_disk(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 3)).astype(np.float32)
    fitted = ScaleFreeExpert.fit(np.array([0, 2]), X, 2.0 * X[:, 2])
    X[:, 1] = 1e9  # not looked at
    assert np.abs(fitted.predict(X) - 2.0 * X[:, 2]).mean() < 0.1
    assert ScaleFreeExpert.load(tmp_path) is None
    fitted.save(tmp_path)
    np.testing.assert_array_equal(ScaleFreeExpert.load(tmp_path).predict(X), fitted.predict(X))
