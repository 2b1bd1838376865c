"""Functions of FlashInfer Trace, called alike: from a definition's inputs to all its outputs.

A solution may return its outputs, as a tuple or by name, or write them into tensors that the caller
makes (destination-passing style).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foretune.errors import MeasurementError
from foretune.registry import object_at
from foretune.tune.tasks.flashinfer_inputs import torch_type
from foretune.tune.tasks.flashinfer_schema import Definition
from foretune.values import Value

OutputsFunction = Callable[..., tuple[Any, ...]]
"""Inputs in the definition's order -> its outputs in their order."""


@dataclass(frozen=True)
class TraceCode:
    """A function of a definition's inputs, which returns a tuple of all outputs.

    Attributes:
        location: the function, as ``FILE.py:NAME``.
        definition: its inputs and outputs.
        writes_outputs: whether it takes its outputs as the last arguments.
        device: torch's name of the device.
    """

    location: str
    definition: Definition
    writes_outputs: bool
    device: str

    def for_problem(self, problem: Mapping[str, Value]) -> OutputsFunction:
        """Return the function for one problem's sizes."""
        function = object_at(self.location)
        if self.writes_outputs:
            return self._with_new_outputs(function, problem)
        return self._with_ordered_outputs(function)

    def _with_ordered_outputs(self, function: Callable[..., Any]) -> OutputsFunction:
        """Return a function that returns a tuple, for one that may return them by name."""
        names = list(self.definition.outputs)

        def call(*inputs: Any) -> tuple[Any, ...]:
            result = function(*inputs)
            if isinstance(result, Mapping):
                result = tuple(result[name] for name in names)
            outputs = tuple(result) if isinstance(result, list | tuple) else (result,)
            if len(outputs) != len(names):
                raise MeasurementError(f"it returns {len(outputs)} outputs instead of {len(names)}")
            return outputs

        return call

    def _with_new_outputs(
        self, function: Callable[..., Any], problem: Mapping[str, Value]
    ) -> OutputsFunction:
        """Return a function that makes the outputs, and passes them as the last arguments."""
        import torch

        shapes_and_types = [
            (self.definition.shape(tensor, problem), torch_type(tensor.dtype))
            for tensor in self.definition.outputs.values()
        ]

        def call(*inputs: Any) -> tuple[Any, ...]:
            outputs = tuple(
                torch.empty(shape, dtype=dtype, device=self.device)
                for shape, dtype in shapes_and_types
            )
            function(*inputs, *outputs)
            return outputs

        return call
