"""Planning the training of language models: parallelism, and what is traded for memory."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy

if TYPE_CHECKING:
    from foretune.tune.plan.training.memory import TrainingMemory, training_memory
    from foretune.tune.plan.training.planner import TrainingPlan, plan_training
    from foretune.tune.plan.training.recipe import Recipe, TrainingLayout, impossible_because
    from foretune.tune.plan.training.search import possible_recipes
    from foretune.tune.plan.training.step import SOFTWARE, Calibration, predict_steps
    from foretune.tune.plan.training.task import TrainingTask

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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "memory": ("TrainingMemory", "training_memory"),
        "planner": ("TrainingPlan", "plan_training"),
        "recipe": ("Recipe", "TrainingLayout", "impossible_because"),
        "search": ("possible_recipes",),
        "step": ("SOFTWARE", "Calibration", "predict_steps"),
        "task": ("TrainingTask",),
    },
)
