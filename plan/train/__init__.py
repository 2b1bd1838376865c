"""Plans the training of language models: parallelism, and time traded for memory."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.plan.train.memory import TrainingMemory, training_memory
    from foretune.plan.train.planner import TrainingPlan, plan_training
    from foretune.plan.train.recipe import (
        Recipe,
        TrainingLayout,
        impossible_because,
        possible_recipes,
    )
    from foretune.plan.train.step import SOFTWARE, Calibration, predict_steps
    from foretune.plan.train.task import TrainingTask

__all__ = [
    "SOFTWARE",
    "Calibration",
    "Recipe",
    "TrainingLayout",
    "TrainingMemory",
    "TrainingPlan",
    "TrainingTask",
    "impossible_because",
    "plan_training",
    "possible_recipes",
    "predict_steps",
    "training_memory",
]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "memory": ("TrainingMemory", "training_memory"),
            "planner": ("TrainingPlan", "plan_training"),
            "recipe": ("Recipe", "TrainingLayout", "impossible_because", "possible_recipes"),
            "step": ("SOFTWARE", "Calibration", "predict_steps"),
            "task": ("TrainingTask",),
        },
    )
