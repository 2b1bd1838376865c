"""FLOPs of training, as model FLOPs utilization counts them.

Six per weight and token (two forward, four backward), plus attention's two products over all keys,
masked or not (PaLM, arXiv:2204.02311, appendix B; Narayanan et al., arXiv:2104.04473).
"""

from foretune.device import Device, peak_rate
from foretune.plan.describe.description import ModelDescription
from foretune.plan.train.recipe import Recompute
from foretune.plan.train.task import TrainingTask


def model_flops(model: ModelDescription, task: TrainingTask) -> float:
    """Return the FLOPs of one step on all GPUs, without recomputation."""
    return 3.0 * task.tokens * (_projections(model) + _attention(model, task) + _head(model))


def hardware_flops(model: ModelDescription, task: TrainingTask, recompute: Recompute) -> float:
    """Return `model_flops` plus recomputation."""
    recomputed = 0.0
    if recompute == "full":
        recomputed = _projections(model) + _attention(model, task)
    elif recompute == "selective" and task.attention == "unfused":
        recomputed = _attention(model, task)
    return model_flops(model, task) + task.tokens * recomputed


def peak_flops(device: Device, task: TrainingTask) -> float:
    """Return one GPU's peak FLOPs per second by its data sheet."""
    return 1e9 * float(peak_rate(task.precision, device.specs))


def _projections(model: ModelDescription) -> float:
    """Return forward FLOPs per token of projections, without the output's."""
    weights = model.weights()
    tables = weights.embedding if model.tied_embeddings else weights.head
    return 2.0 * (model.active_parameters() - tables)


def _attention(model: ModelDescription, task: TrainingTask) -> float:
    mla = model.mla
    widths = mla.qk_nope + mla.qk_rope + mla.v_head if mla else 2 * model.head_dim
    full = model.softmax_layers - model.windowed_layers
    keys = full * task.sequence + model.windowed_layers * min(task.sequence, model.sliding_window)
    return 2.0 * model.heads * widths * keys


def _head(model: ModelDescription) -> float:
    return 2.0 * model.hidden * model.vocab
