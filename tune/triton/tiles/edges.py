"""Parameters that may be edges of a tile: their letters, and the sizes that they divide."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foretune.space import Configuration
from foretune.tune.triton.kernel import LAUNCH_OPTIONS
from foretune.tune.triton.problem_key import Call

UNBOUNDED_EDGE = 2**30
"""An edge that is larger than any output."""
MIN_EDGE = 8
"""Minimum edge of a tile for matrix units."""
NOT_EDGE_WORDS = ("GROUP", "SPLIT", "STAGES", "WARPS", "SMS")
"""Words in the names of parameters that are not edges."""
NOT_SIZE_WORDS = {"STRIDE", "BLOCK", "GROUP", "SPLIT", "TOP", "NUM", "MAX"}
"""Words in the names of arguments that are not sizes."""
_TILE_NAME = re.compile(r"^(?:BLOCK|TILE|B)(?:_?SIZE)?_?([A-Z0-9]*)$", re.IGNORECASE)


@dataclass(frozen=True)
class Edges:
    """The parameters of a call that may be edges.

    Attributes:
        output_sizes: the size of the output that each parameter divides; 0 if it divides none.
    """

    output_sizes: Mapping[str, float]

    @classmethod
    def find(cls, call: Call, configs: Sequence[Configuration]) -> "Edges":
        """Return the edges of a call; evaluates its grid."""
        names = [name for name in configs[0] if _may_be_edge(name, configs)]
        return cls({name: divided_size(call, configs[0], name) for name in names})

    @property
    def over_grid(self) -> list[str]:
        """The parameters that divide the output."""
        return [name for name, size in self.output_sizes.items() if size > 1]

    @property
    def inside_block(self) -> list[str]:
        """The parameters over which a block loops."""
        return [name for name, size in self.output_sizes.items() if not size > 1]

    @property
    def by_letter(self) -> dict[str, str]:
        """The parameters by the letter in their name: ``BLOCK_M`` by ``M``."""
        return {_edge_letter(name): name for name in self.output_sizes}

    @property
    def have_names(self) -> bool:
        """Whether names tell which parameters are the edges of rows and columns."""
        return {"M", "N"} <= self.by_letter.keys()


def divided_size(call: Call, config: Configuration, parameter: str) -> float:
    """Return the size of the output that a parameter divides; 0 if it divides none.

    The more programs an edge of 1 needs than an unbounded edge, the larger is the size.
    """
    fewest_programs = call.programs({**config, parameter: UNBOUNDED_EDGE})
    most_programs = call.programs({**config, parameter: 1})
    if fewest_programs > 0 and most_programs > fewest_programs:
        return most_programs / fewest_programs
    return 0.0


def named_size(arguments: Mapping[str, object], letter: str) -> float:
    """Return the integer argument named by a letter, such as M or ``M_size``; 0 if none is."""
    sizes: dict[str, float] = {}
    for name, value in arguments.items():
        if type(value) is int and value > 0:
            sizes[name.upper()] = float(value)
    if letter in sizes:
        return sizes[letter]

    for name, size in sizes.items():
        words = name.split("_")
        if letter in (words[0], words[-1]) and not NOT_SIZE_WORDS & set(words):
            return size
    return 0.0


def _may_be_edge(name: str, configs: Sequence[Configuration]) -> bool:
    """Whether a parameter's name does not exclude it, and all its values are powers of two."""
    if name in LAUNCH_OPTIONS or any(word in name.upper() for word in NOT_EDGE_WORDS):
        return False
    return all(_is_edge(config.get(name)) for config in configs)


def _is_edge(value: object) -> bool:
    if type(value) is not int:
        return False
    return value >= MIN_EDGE and value & (value - 1) == 0


def _edge_letter(name: str) -> str:
    """Return the letter of an edge; its whole name if it does not look like ``BLOCK_M``."""
    found = _TILE_NAME.match(name)
    return found[1].upper() if found else name
