"""What the kernels of `breadth.py` share: cases, evenly thinned lists, several outputs.

A file of kernels has, in this order: its problems, tiles and defaults; its Triton functions; a
class per kernel, which makes inputs, launches and a plain reference in torch; and its cases.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from foretune.collect.kernels.triton_kernel import CACHE, TritonKernel
from foretune.kernel import latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace
from foretune.values import Value

WARPS = (2, 4, 8, 16)
STAGES = (1, 2, 3, 4, 5)
LISTED = 48
"""Maximum number of configurations of a list."""

Knobs = Mapping[str, tuple[Value, ...]]
"""The values of each parameter of a tile."""


@dataclass(frozen=True)
class Case:
    """A kernel with its problems and its list.

    Attributes:
        name: The case's name in reports; a kernel may have several cases.
        kernel: The kernel.
        sizes: Five problems. The first two have less than a wave of the GPU's programs.
        small: A problem that Triton's interpreter computes in seconds.
        tiles: The parameters of the list besides warps and stages.
        default: The configuration that is measured first.
    """

    name: str
    kernel: TritonKernel
    sizes: tuple[Mapping[str, Value], ...]
    small: Mapping[str, Value]
    tiles: Knobs
    default: Configuration

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems, complete."""
        return [self.kernel.problem(sizes) for sizes in self.sizes]

    @cached_property
    def listed(self) -> list[Configuration]:
        """The list, with the default in front: every tile with every launch, evenly thinned."""
        knobs = {**self.tiles, "num_warps": WARPS, "num_stages": STAGES}
        thinned = evenly_drawn(knobs, LISTED)
        others = [config for config in thinned if config != self.default]
        return [self.default, *others][:LISTED]


def evenly_drawn(knobs: Knobs, count: int, seed: int = 0) -> list[Configuration]:
    """Return ``count`` different configurations, or all if there are no more.

    They are a Latin hypercube: every value of every parameter occurs about equally often. In a
    product that is thinned at equal distances, some values may not occur at all.
    """
    product = [
        Configuration(dict(zip(knobs, values, strict=True)))
        for values in itertools.product(*knobs.values())
    ]
    if len(product) <= count:
        return product

    rng = np.random.default_rng(seed)
    drawn: dict[Configuration, None] = {}
    while len(drawn) < count:
        # A hypercube: per parameter, all its values in turn, in random order.
        value_indices = {}
        for name, values in knobs.items():
            each_once = rng.permutation(len(values))
            value_indices[name] = rng.permutation(np.resize(each_once, count))

        # Its rows are configurations. Some may be equal: another hypercube fills the list.
        for row in range(count):
            config = {name: knobs[name][int(value_indices[name][row])] for name in knobs}
            drawn.setdefault(Configuration(config))
    return list(drawn)[:count]


class BreadthKernel(TritonKernel):
    """A kernel whose parameters are ``tiles``, warps and stages; it may have several outputs.

    Attributes:
        sizes: The names of its problem's sizes, and what they mean.
        choices: Its problem's other parameters.
        tiles: The values of each parameter of a tile.
        usual: The tile, warps and stages of the default.
    """

    sizes: ClassVar[Mapping[str, str]]
    choices: ClassVar[tuple[ProblemParameter, ...]] = ()
    tiles: ClassVar[Knobs]
    usual: ClassVar[Mapping[str, Value]]

    def __init_subclass__(cls) -> None:
        """Make the problem's parameters of the sizes."""
        super().__init_subclass__()
        sizes = [ProblemParameter(name, meaning=text) for name, text in cls.sizes.items()]
        cls.problem_parameters = (*sizes, *cls.choices, CACHE)

    def space(self, problem: Problem) -> SearchSpace:
        """Return every tile with every launch."""
        return SearchSpace({**self.tiles, "num_warps": WARPS, "num_stages": STAGES})

    def default(self, problem: Problem) -> Configuration:
        """Return the usual tile."""
        return Configuration(self.usual)

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return problems with sizes of a power of two."""
        choices = dict.fromkeys(self.sizes, (64, 128, 256, 512))
        return latin_hypercube_problems(self, choices, n, seed)

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return `tolerance`: the format is not a parameter of the problem."""
        return self.tolerance

    def invalidate_output(self, output: Any) -> None:
        """Invalidate every output."""
        for tensor in _tensors(output):
            super().invalidate_output(tensor)

    def relative_error(self, output: Any, expected: Any) -> float:
        """Return the largest error of all outputs."""
        errors = []
        for tensor, expected_tensor in zip(_tensors(output), _tensors(expected), strict=True):
            errors.append(super().relative_error(tensor, expected_tensor))
        return max(errors)

    def case(
        self, name: str, sizes: tuple[Mapping[str, Value], ...], small: Mapping[str, Value]
    ) -> Case:
        """Return a case with this kernel's list."""
        return Case(
            name=name,
            kernel=self,
            sizes=sizes,
            small=small,
            tiles=self.tiles,
            default=Configuration(self.usual),
        )


def launch_options(config: Configuration) -> dict[str, Any]:
    """Return the keyword arguments of a launch; ``STAGES`` is for loops without a product."""
    return {**config, "STAGES": int(config["num_stages"])}


def sizes_of(problem: Problem, *names: str) -> list[int]:
    """Return sizes of a problem by their names."""
    return [int(problem[name]) for name in names]


def _tensors(output: Any) -> tuple[torch.Tensor, ...]:
    """Return all outputs of a kernel that returns one, or a tuple."""
    return output if isinstance(output, tuple) else (output,)
