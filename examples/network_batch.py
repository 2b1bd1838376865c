"""Batch size and threads of a network as knobs, with its predicted operators as a prior.

python examples/network_batch.py [IMAGES]

    foretune collect --operators network.pt2 --batch 1,8,64 --threads 1,2 --out operators

makes the folder ``operators`` for the prior; without it, the search starts from nothing.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import foretune as ft
from foretune.collect import local_device
from foretune.collect.networks.network import network_of
from foretune.datasets import read_runs
from foretune.models.network import NetworkPredictor

OPERATORS = Path("operators/operators.parquet")


def export():
    """Save a small convolutional network with a dynamic batch size, and return it."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    sizes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(
        network.eval(), (torch.zeros(2, 3, 32, 32),), dynamic_shapes=sizes
    )
    torch.export.save(program, "network.pt2")
    return program


def classify(images, batch=1, threads=1):
    """Run the network over all images, some at a time."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        return torch.cat([network(part) for part in images.split(batch)])


def predicted_ms(config):
    """Return the time of all images: the network's at this batch size, as often as it runs."""
    made = network_of(program, "network", config["batch"], config["threads"])
    return predictor.predict(made, device).time_ms * count / config["batch"]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    program, device = export(), local_device("cpu", measure=False)
    network = program.module()
    predictor = NetworkPredictor(read_runs(OPERATORS)) if OPERATORS.exists() else None
    best = ft.tune_function(
        classify,
        {"batch": [2**i for i in range(9) if 2**i <= count], "threads": [1, 2]},
        args=(torch.randn(count, 3, 32, 32),),
        budget=6,
        isolated=False,  # a graph cannot be sent to a measuring process
        predictor=predicted_ms if predictor else None,
    )
    print(best.config, f"{best.speedup:.2f}× the default's speed")
