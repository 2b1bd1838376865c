"""A space of 264 configurations whose times are a formula, and models that learned a part of it."""

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from foretune.models import RuntimeRegressor
from foretune.problem import Problem
from foretune.space import SearchSpace

PROBLEM = Problem(M=512)
SPACE = SearchSpace(
    {
        "block_m": (8, 16, 32, 64, 128, 256),
        "block_n": (8, 16, 32, 64, 128, 256),
        "unroll": (1, 2, 4, 8),
        "layout": ("row", "col"),
    },
    ["block_m * block_n <= 16384"],
)


def time_ms(config):
    """Return the time of a configuration: the best blocks are large, and every factor matters."""
    m, n, unroll = np.log2([config["block_m"], config["block_n"], config["unroll"]])
    smooth = 0.15 * (m - 5) ** 2 + 0.1 * (n - 6) ** 2 + 0.05 * (m - 5) * (n - 6)
    rough = 0.2 * ((m + n) % 3 == 0) + 0.1 * np.sin(3 * m + n + 5 * unroll)
    return float(
        np.exp(smooth + 0.2 * (unroll - 2) ** 2 + 0.3 * (config["layout"] == "row") + rough)
    )


TIMES = np.array([time_ms(config) for config in SPACE])
BEST = SPACE[int(TIMES.argmin())]


def training_rows(share=0.15):
    """Return a part of the space as a data frame with bare names, and its times."""
    chosen = np.random.default_rng(0).permutation(len(SPACE))[: int(share * len(SPACE))]
    return pd.DataFrame([{**PROBLEM, **SPACE[int(i)]} for i in chosen]), TIMES[chosen]


def pipeline():
    """Return a fitted pipeline that encodes the layout itself."""
    encode = make_column_transformer((OneHotEncoder(), ["layout"]), remainder="passthrough")
    return make_pipeline(encode, GradientBoostingRegressor(random_state=0)).fit(*training_rows())


def forest():
    """Return a fitted forest whose columns are indicators, in an order of their own."""
    table, times = training_rows()
    columns = pd.get_dummies(table).iloc[:, ::-1]
    return RandomForestRegressor(50, random_state=0).fit(columns, times)


def regressor():
    """Return a fitted `RuntimeRegressor`."""
    return RuntimeRegressor().fit(*training_rows())


def by_table(table):
    """Guess from a table; off by some octaves."""
    return 1 + abs(np.log2(table["block_m"]) - 5) + abs(np.log2(table["block_n"]) - 6)


def by_configuration(config):
    """Guess the same from a configuration, branching as a table cannot."""
    if config["layout"] == "row" and config["M"] == PROBLEM["M"]:
        return 20.0
    return 1 + abs(np.log2(config["block_m"]) - 5) + abs(np.log2(config["block_n"]) - 6)
