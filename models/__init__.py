"""Predictors of runtime and power: models, honest validation, saving and loading."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy

if TYPE_CHECKING:
    from foretune.models.predictor import Predictor
    from foretune.models.saved.pretrained import find_pretrained
    from foretune.models.training import Training, train_predictor
    from foretune.models.validation.curve import learning_curve
    from foretune.models.validation.evaluation import evaluate_predictor
    from foretune.models.validation.noise import noise_floor

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
        "validation.evaluation": ("evaluate_predictor",),
        "validation.curve": ("learning_curve",),
        "validation.noise": ("noise_floor",),
        "predictor": ("Predictor",),
        "saved.pretrained": ("find_pretrained",),
        "training": (
            "Training",
            "train_predictor",
        ),
    },
)
