"""Search spaces: all legal combinations of the values of tunable parameters.

A space is a table of small integers, one code per parameter; `Configuration` objects are made on
demand. If a space is too large for a table, its indices count all combinations, legal or not.
Random legal configurations are then built one parameter at a time, so that restrictions prune
early.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from foretune.errors import SpaceError
from foretune.restriction import Restriction
from foretune.values import FrozenParameters, Value, plain_value

MAX_VALUES = 2**16
"""Maximum number of values of one parameter: codes have 16 bits."""
MAX_CONFIGURATIONS = 4_000_000
"""Maximum number of rows of the table; with 20 parameters, it takes 160 MB."""
MAX_COMBINATIONS = 2**62
"""Maximum number of combinations that fit a 64-bit index."""
MAX_PARTIAL_CONFIGURATIONS = 20_000
"""Partial configurations kept while sampling from a space too large to enumerate."""
MAX_COLUMN_INTEGER = 2**63
"""Integers of NumPy's columns are smaller."""
ABSENT = ""
"""Value of a parameter that a configuration of a `ListedSpace` lacks."""


class Configuration(FrozenParameters):
    """One value for each tunable parameter, e.g. ``Configuration(BLOCK_M=64, num_warps=4)``."""

    __slots__ = ()


class SearchSpace:
    """All configurations over ``parameters`` that satisfy ``restrictions``.

    Configurations have indices 0 … len(space)-1, in lexicographic order of the declared values. If
    `is_too_large_to_enumerate`, indices count all combinations, and illegal ones are not in it.

    Args:
        parameters: name -> its legal values, in order.
        restrictions: expressions (``"BLOCK_M * BLOCK_N <= 4096"``) or functions of parameter names.

    Raises:
        SpaceError: a parameter has no or repeated values, a restriction is invalid, or no
            configuration is legal (found at the first enumeration).
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[Value]],
        restrictions: Sequence[str | Callable[..., bool]] = (),
    ) -> None:
        self.parameters = {name: _values(name, values) for name, values in parameters.items()}
        self.restrictions = [Restriction(rule, list(self.parameters)) for rule in restrictions]

    @classmethod
    def from_configs(cls, configs: Iterable[Mapping[str, Any]]) -> Self:
        """Return the space of exactly these configurations, e.g. those in a run table.

        Raises SpaceError if there are none, or they do not have the same parameters.
        """
        given = (c if isinstance(c, Configuration) else Configuration(c) for c in configs)
        distinct = list(dict.fromkeys(given))
        if not distinct:
            raise SpaceError("no configurations were given for the space")
        if any(config.keys() != distinct[0].keys() for config in distinct):
            raise SpaceError("the configurations do not have the same parameters")

        # Each parameter has the values that occur: sorted, numbers before texts.
        names = list(distinct[0])
        values = {
            name: sorted({config[name] for config in distinct}, key=_numbers_first)
            for name in names
        }
        space = cls(values)

        # The space is these configurations, not all combinations of their values.
        code_of = {
            name: {value: code for code, value in enumerate(values)}
            for name, values in space.parameters.items()
        }
        table = np.array(
            [[code_of[name][config[name]] for name in names] for config in distinct],
            dtype=np.uint16,
        )
        space._table = table[np.argsort(space._keys(table))]
        return space

    @property
    def names(self) -> list[str]:
        """Parameter names, in declared order."""
        return list(self.parameters)

    def __len__(self) -> int:
        return self._combinations if self.is_too_large_to_enumerate else len(self.codes)

    def __iter__(self) -> Iterator[Configuration]:
        return (self[i] for i in range(len(self.codes)))

    def __getitem__(self, index: int) -> Configuration:
        codes = self.codes_of(index)
        return Configuration(
            {
                name: values[code]
                for (name, values), code in zip(self.parameters.items(), codes, strict=True)
            }
        )

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and self.index_or_none(config) is not None

    def __repr__(self) -> str:
        return f"SearchSpace({self.parameters}, {[str(r) for r in self.restrictions]})"

    @property
    def is_too_large_to_enumerate(self) -> bool:
        """Whether there are too many configurations to list."""
        return self._table is None

    @property
    def codes(self) -> npt.NDArray[np.uint16]:
        """Codes of all legal configurations, shape (len(space), parameters).

        A code is a position in a list of values. Raises SpaceError if there are too many.
        """
        if self._table is None:
            raise SpaceError(
                f"the space has more than {MAX_CONFIGURATIONS:,} configurations: "
                "add restrictions or drop values, or use a searcher that samples it (surrogate, "
                "random), without a predictor"
            )
        return self._table

    def codes_of(self, indices: npt.ArrayLike) -> npt.NDArray[np.uint16]:
        """Return the codes of the configurations at ``indices``, shape (…, parameters)."""
        index_array = np.asarray(indices, dtype=np.int64)
        if not self.is_too_large_to_enumerate:
            return self.codes[index_array]
        sizes = tuple(len(values) for values in self.parameters.values())
        return np.stack(np.unravel_index(index_array, sizes), axis=-1).astype(np.uint16)

    def indices_of(self, codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]:
        """Return the indices of configurations given by codes; -1 if not in the space."""
        keys = self._keys(codes)
        if self.is_too_large_to_enumerate:
            # Their keys are the indices.
            if not self.restrictions:
                return keys
            legal = np.all([self._legal(rule, codes) for rule in self.restrictions], axis=0)
            return np.where(legal, keys, -1)

        # Look the keys up in the table's.
        table_keys, row_of_key = self._sorted_keys
        positions = np.minimum(np.searchsorted(table_keys, keys), len(table_keys) - 1)
        is_in_table = table_keys[positions] == keys
        return np.where(is_in_table, row_of_key[positions], -1)

    def columns(self, indices: npt.ArrayLike | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return the values of all (or the given) configurations as one array per parameter."""
        codes = self.codes if indices is None else self.codes_of(indices)
        return {
            name: _array(values)[column]
            for (name, values), column in zip(self.parameters.items(), codes.T, strict=True)
        }

    def index(self, config: Mapping[str, Any]) -> int:
        """Return the index of ``config``.

        Raises SpaceError, which names the value or restriction, if it is not in the space.
        """
        index = self.index_or_none(config)
        if index is None:
            raise SpaceError(
                f"{Configuration(config)} is not in the space: {self._explain_absence(config)}"
            )
        return index

    def index_or_none(self, config: Mapping[str, Any]) -> int | None:
        """Return the index of ``config``; None if it is not in the space."""
        if config.keys() != self.parameters.keys():
            return None
        try:
            codes = [values.index(config[name]) for name, values in self.parameters.items()]
        except ValueError:
            return None
        index = int(self.indices_of(np.array([codes], dtype=np.uint16))[0])
        return None if index < 0 else index

    def sample_indices(self, n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return the indices of ``n`` different random configurations; all if there are fewer.

        In a space too large to enumerate, sampling is slightly biased and may find fewer; it raises
        SpaceError if it finds none.
        """
        if not self.is_too_large_to_enumerate:
            return rng.choice(len(self), size=min(n, len(self)), replace=False)

        # Extend partial configurations by one parameter after the other. Before each, keep a random
        # part of them, so that their number stays within the limit.
        order = self._expansion_order()
        table = np.zeros((1, len(order)), dtype=np.uint16)
        max_rows = max(MAX_PARTIAL_CONFIGURATIONS, 4 * n)
        for i, name in enumerate(order, start=1):
            n_kept = max(max_rows // len(self.parameters[name]), 1)
            if len(table) > n_kept:
                table = table[rng.choice(len(table), n_kept, replace=False)]
            table = self._expand(table, order[:i])

        indices = self._keys(table)
        if not len(indices):
            rules = "; ".join(map(str, self.restrictions))
            raise SpaceError(f"found no configuration that satisfies the restrictions: {rules}")
        return rng.choice(indices, size=min(n, len(indices)), replace=False)

    def sample(self, n: int, rng: np.random.Generator) -> list[Configuration]:
        """Return ``n`` different random configurations; all if there are fewer."""
        return [self[int(i)] for i in self.sample_indices(n, rng)]

    def neighbor_indices(self, indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the indices of configurations that differ from a given one in one parameter."""
        codes = self.codes_of(indices)
        neighbors = [codes[:0]]
        for column, values in enumerate(self.parameters.values()):
            # Every configuration with each value of this parameter, except its own.
            changed = np.repeat(codes, len(values), axis=0)
            own_code = changed[:, column].copy()
            changed[:, column] = np.tile(np.arange(len(values)), len(codes))
            neighbors.append(changed[changed[:, column] != own_code])
        neighbor_indices = self.indices_of(np.concatenate(neighbors))
        is_legal = neighbor_indices >= 0
        return np.unique(neighbor_indices[is_legal])

    def neighbors(self, config: Mapping[str, Any]) -> list[Configuration]:
        """Return the legal configurations that differ from ``config`` in one parameter."""
        return [self[int(i)] for i in self.neighbor_indices([self.index(config)])]

    @property
    def _combinations(self) -> int:
        return math.prod(len(values) for values in self.parameters.values())

    @cached_property
    def _table(self) -> npt.NDArray[np.uint16] | None:
        """Codes of all legal configurations in order; None if there are too many to list."""
        order = self._expansion_order()
        table = np.zeros((1, len(order)), dtype=np.uint16)
        for i, name in enumerate(order, start=1):
            if len(table) * len(self.parameters[name]) > MAX_CONFIGURATIONS:
                if self._combinations > MAX_COMBINATIONS:
                    raise SpaceError("the space has more than 2^62 combinations: drop parameters")
                return None
            table = self._expand(table, order[:i])
        if len(table) == 0:
            rules = "; ".join(map(str, self.restrictions))
            raise SpaceError(f"no configuration satisfies the restrictions: {rules}")
        return table[np.argsort(self._keys(table), kind="stable")]

    def _expansion_order(self) -> list[str]:
        """Return the parameters in an order in which restrictions prune early."""
        missing_names = [set(rule.names) for rule in self.restrictions]
        order: list[str] = []
        remaining = list(self.parameters)
        while remaining:
            # Next is a parameter of the restriction that lacks the fewest.
            incomplete = [names for names in missing_names if names]
            candidates = min(incomplete, key=len) if incomplete else set(remaining)
            chosen = next(name for name in remaining if name in candidates)
            order.append(chosen)
            remaining.remove(chosen)
            for names in missing_names:
                names.discard(chosen)
        return order

    def _expand(self, table: npt.NDArray[np.uint16], known: list[str]) -> npt.NDArray[np.uint16]:
        """Extend partial configurations by every value of the last of the ``known`` parameters."""
        name = known[-1]
        choices = np.arange(len(self.parameters[name]), dtype=np.uint16)
        extended = np.repeat(table, len(choices), axis=0)
        extended[:, self.names.index(name)] = np.tile(choices, len(table))

        # Apply the restrictions that this parameter completes; constant ones at each.
        for rule in self.restrictions:
            names = rule.names or {name}
            if name in names and names <= set(known):
                extended = extended[self._legal(rule, extended)]
        return extended

    def _legal(self, rule: Restriction, codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """Return whether each row of codes satisfies a restriction."""
        used = rule.names or self.parameters
        return rule.holds(
            {
                name: _array(values)[column]
                for (name, values), column in zip(self.parameters.items(), codes.T, strict=True)
                if name in used
            }
        )

    def _keys(self, codes: npt.NDArray[np.uint16]) -> npt.NDArray[Any]:
        """Return a sort key per row: an integer, or bytes if integers overflow."""
        if self._combinations > MAX_COMBINATIONS:
            rows = np.ascontiguousarray(codes, dtype=">u2")
            return rows.view(f"S{2 * rows.shape[1]}")[:, 0]
        keys = np.zeros(len(codes), dtype=np.int64)
        for i, values in enumerate(self.parameters.values()):
            keys = keys * len(values) + codes[:, i]
        return keys

    @cached_property
    def _sorted_keys(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Sorted keys, and the row of each."""
        keys = self._keys(self.codes)
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    def _explain_absence(self, config: Mapping[str, Any]) -> str:
        """Return why a configuration is not in the space."""
        if config.keys() != self.parameters.keys():
            return f"its parameters are {', '.join(self.parameters)}"
        for name, values in self.parameters.items():
            if config[name] not in values:
                return f"{name}={config[name]} is not one of {values}"
        row = {name: _array([value]) for name, value in config.items()}
        violated = [str(rule) for rule in self.restrictions if not rule.holds(row)[0]]
        if violated:
            return f"it breaks {'; '.join(violated)}"
        return "it is not one of those listed"


class ListedSpace(SearchSpace):
    """The configurations of a list, in its order; they need not have the same parameters.

    Missing parameters have the value `ABSENT`; duplicates count once. Raises SpaceError if the list
    is empty.
    """

    def __init__(self, configs: Iterable[Configuration]) -> None:
        self._configs = list(dict.fromkeys(configs))
        if not self._configs:
            raise SpaceError("no configurations were given for the space")
        self._index_by_config = {config: i for i, config in enumerate(self._configs)}

        # A parameter's values are in the order of their first occurrence.
        names = dict.fromkeys(name for config in self._configs for name in config)
        columns = {name: [config.get(name, ABSENT) for config in self._configs] for name in names}
        self.parameters = {name: tuple(dict.fromkeys(column)) for name, column in columns.items()}
        self.restrictions = []

        codes = np.zeros((len(self._configs), len(columns)), dtype=np.uint16)
        for i, (name, column) in enumerate(columns.items()):
            code_of = {value: code for code, value in enumerate(self.parameters[name])}
            codes[:, i] = [code_of[value] for value in column]
        self._table = codes

    def __getitem__(self, index: int) -> Configuration:
        return self._configs[index]

    def index_or_none(self, config: Mapping[str, Any]) -> int | None:
        """Return the index of ``config``; None if it is not in the list."""
        given = config if isinstance(config, Configuration) else Configuration(config)
        index = self._index_by_config.get(given)
        if index is None and ABSENT in given.values():
            present = Configuration({n: v for n, v in given.items() if v != ABSENT})
            index = self._index_by_config.get(present)
        return index


def _values(name: str, values: Sequence[Value]) -> tuple[Value, ...]:
    """Return a parameter's values as plain ones; raise SpaceError if they are no list of values."""
    if isinstance(values, (str, bool, int, float)):
        raise SpaceError(f"parameter {name!r} is {values!r}: give a list of its values")
    plain = tuple(plain_value(name, v) for v in values)
    if not plain:
        raise SpaceError(f"parameter {name!r} has no values")
    if len(set(plain)) < len(plain):
        raise SpaceError(f"parameter {name!r} lists a value twice: {plain}")
    if len(plain) > MAX_VALUES:
        raise SpaceError(f"parameter {name!r} has {len(plain):,} values, more than {MAX_VALUES:,}")
    return plain


def _numbers_first(value: Value) -> tuple[bool, Value]:
    return isinstance(value, str), value


def _array(values: Sequence[Value]) -> npt.NDArray[Any]:
    """Return values as an array; of objects if NumPy would change them.

    It would turn numbers beside text into text, and large integers into fractions.
    """
    types = {type(value) for value in values}
    is_mixed = str in types and len(types) > 1
    is_large = any(isinstance(v, int) and v >= MAX_COLUMN_INTEGER for v in values)
    return np.array(values, dtype=object if is_mixed or is_large else None)
