"""Predictors of runtime and power: models, honest validation, saving and loading."""

from foretune.models.evaluation import evaluate_predictor, metrics_table
from foretune.models.learning_curve import learning_curve
from foretune.models.noise import noise_floor
from foretune.models.predictor import Predictor
from foretune.models.training import Training, train_predictor

__all__ = [
    "Predictor",
    "Training",
    "evaluate_predictor",
    "learning_curve",
    "metrics_table",
    "noise_floor",
    "train_predictor",
]
