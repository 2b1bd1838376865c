"""Judge a faster way to normalise rows, and one that only looks faster.

python examples/judge.py
"""

import numpy as np

from foretune.tune.judge import judge


def inputs(rows, seed):
    """Return the arguments of a call; another seed gives other values."""
    return (np.random.default_rng(seed).random((rows, 256), dtype=np.float32),)


def reference(x):
    """Divide each row by its length."""
    return np.stack([row / np.sqrt((row * row).sum()) for row in x])


def vectorised(x):
    """Do all rows at once."""
    return x / np.sqrt(np.einsum("ij,ij->i", x, x))[:, None]


def remembered(x, kept={}):  # noqa: B006
    """Return what it returned before."""
    return kept.setdefault(x.shape, vectorised(x))


if __name__ == "__main__":
    problems = [{"rows": 100}, {"rows": 1000}]
    for candidate in (vectorised, remembered):
        verdict = judge(candidate, reference, problems, inputs=inputs, session_s=0.2)
        print(f"{candidate.__name__}: {verdict}")
