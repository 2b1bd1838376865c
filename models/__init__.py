"""Predictors of runtime and power: models, honest validation, saving and loading."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy

if TYPE_CHECKING:
    from foretune.models.curve import learning_curve
    from foretune.models.evaluation import evaluate_predictor
    from foretune.models.noise import noise_floor
    from foretune.models.predictor import Predictor
    from foretune.models.pretrained import find_pretrained
    from foretune.models.training import Training, train_predictor

__all__ = [
    "Predictor",
    "Training",
    "evaluate_predictor",
    "find_pretrained",
    "learning_curve",
    "noise_floor",
    "train_predictor",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "evaluation": ("evaluate_predictor",),
        "curve": ("learning_curve",),
        "noise": ("noise_floor",),
        "predictor": ("Predictor",),
        "pretrained": ("find_pretrained",),
        "training": (
            "Training",
            "train_predictor",
        ),
    },
)
