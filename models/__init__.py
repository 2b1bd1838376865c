"""Predictors of runtime and power: models, validation, saving and loading."""

from typing import TYPE_CHECKING

from foretune.support.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.models.guides.guide import SpacePredictor
    from foretune.models.predictor import Predictor
    from foretune.models.runtime_regressor import RuntimeRegressor
    from foretune.models.saved.pretrained import find_pretrained
    from foretune.models.training import Training, train_predictor
    from foretune.models.validation.evaluation import evaluate_predictor, learning_curve
    from foretune.models.validation.metrics import noise_floor

__all__ = [
    "Predictor",
    "RuntimeRegressor",
    "SpacePredictor",
    "Training",
    "evaluate_predictor",
    "find_pretrained",
    "learning_curve",
    "noise_floor",
    "train_predictor",
]

_MODULE_OF = {
    "Predictor": "foretune.models.predictor",
    "RuntimeRegressor": "foretune.models.runtime_regressor",
    "SpacePredictor": "foretune.models.guides.guide",
    "Training": "foretune.models.training",
    "evaluate_predictor": "foretune.models.validation.evaluation",
    "find_pretrained": "foretune.models.saved.pretrained",
    "learning_curve": "foretune.models.validation.evaluation",
    "noise_floor": "foretune.models.validation.metrics",
    "train_predictor": "foretune.models.training",
}
"""Public name -> module that defines it: the imports above, which only type checkers run."""

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__, _MODULE_OF)
