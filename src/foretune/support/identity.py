"""What counts as the same work: the content of everything that a call reads.

Two calls do the same work if their code, what the code reads, and their arguments are the same.
`identify` describes a value so that equal values have equal descriptions in every process, and
other values have others:

| value | counts by |
|---|---|
| number, text, path, enum, range, dtype, None | type and content |
| tuple, list, set, dict, dataclass, any object | class and parts |
| array, tensor, table, sparse matrix | class, shape, dtype and memory layout |
| function | syntax, defaults, globals, closure variables, attributes |
| method, partial function | function, and the object or arguments that it holds |
| class or module of the user | code, and values that it holds |
| code of Python or of an installed package | name |
| lock, logger, random number generator | class: their state is no work |
| context variable | name and present value |
| environment variable that code of the user names | value |

What cannot be read (an open file, a generator, an object of C without a content) is named in
`Identity.unreadable`; such work must never be taken for the same as other work.
"""

import contextvars
import copyreg
import dataclasses
import enum
import functools
import hashlib
import inspect
import io
import itertools
import logging
import os
import random
import sys
import threading
import types
import uuid
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from foretune.errors import UsageError
from foretune.support.captures import (
    READS_ANY_ATTRIBUTE,
    captured_values,
    imports_read,
    names_read,
    nested_code_objects,
    variables_read,
)
from foretune.support.environment_read import environment_read
from foretune.support.files_named import content_of_file_named
from foretune.support.function_code import function_code
from foretune.support.module_code import code_of_import, is_user_code, module_code

MAX_PARTS = 100_000
"""Larger objects are not read: they are data in a form that Foretune does not know."""
SHORT_TEXT = 80
"""Longer descriptions of parts are replaced by their hash, so that texts do not multiply."""
MANY_NUMBERS = 1000
"""Longer lists of plain values are read as one text."""
MAX_NAMED = 3
"""Number of unreadable parts that a message lists."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)
_STATE_IS_NO_WORK = (
    *_LOCKS,
    logging.Logger,
    logging.Handler,
    random.Random,
)
_RANDOM_STATES = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_ONE_PASS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, io.IOBase)
_BUFFERS = (bytearray, memoryview, array)
_HAS_CONTENT_OF_ITS_OWN = (
    *(tuple, list, dict, set, frozenset, deque),
    *(str, bytes, int, float, complex),
    *(BaseException, functools.partial),
)
"""An object of a class that is derived from one of these has more content than its attributes."""
_VIEWS_OF_DICTS: Any = (type({}.keys()), type({}.values()), type({}.items()))
_BUILT_IN_FUNCTIONS = (types.BuiltinFunctionType, types.MethodWrapperType, np.ufunc)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
_NOTES_OF_CLASSES = frozenset(
    {
        "__module__",
        "__qualname__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__firstlineno__",
        "__static_attributes__",
        "__slots__",
        "__abstractmethods__",
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
        "__match_args__",
        "__hash__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__classdictcell__",
    }
)
"""What Python notes in a class beside the user's own definitions."""


@dataclass(frozen=True)
class Identity:
    """What identifies a value.

    ``digest`` has sixteen hexadecimal digits. ``unreadable`` names the parts that could not be
    read: if there are any, other work may have the same digest.
    """

    digest: str
    unreadable: tuple[str, ...] = ()


def identify(
    value: Any,
    *,
    owner: str = "it",
    floats_are_data: bool = False,
    ignored: frozenset[str] = frozenset(),
) -> Identity:
    """Return the identity of a value; see the module for what counts.

    ``owner`` begins the names of unreadable parts. With ``floats_are_data``, floating-point numbers
    count by type only, in tuples, lists and dicts too: the amount of work rarely depends on them.
    ``ignored`` are variables and attributes that do not count, as messages name them.
    """
    reader = _Reader(floats_are_data, ignored)
    with reader.within(owner):
        text = reader.describe(value)
    return Identity(_digest(text), tuple(dict.fromkeys(reader.unreadable)))


NOTHING = Identity(digest="")


def name_work(function: Any, name: str) -> Identity:
    """Return the identity of a function whose user names what it reads; its code still counts."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"identity={name!r}: give a text that names what the function works on")
    code = getattr(function, "__func__", function)
    text = function_code(code) if isinstance(code, types.FunctionType) else type(code).__qualname__
    return Identity(_digest(f"{text}\n{name}"))


def place_of_attribute(name: str) -> str:
    """Return how the attribute of an object is named in messages."""
    return f"the attribute {name!r}"


def source_hash_of_function(function: Any) -> str:
    """Hash the code of a function and everything that it reads, as 16 hexadecimal digits.

    If something cannot be read, the hash is one that nothing else has.
    """
    found = identify(function)
    return unique_digest() if found.unreadable else found.digest


def unique_digest() -> str:
    """Return a digest that no work had before, or will have."""
    return uuid.uuid4().hex[:16]


def explain_unreadable(name: str, unreadable: tuple[str, ...]) -> str:
    """Return the line that says why results of ``name`` are not reused, and what helps."""
    listed = ", ".join(unreadable[:MAX_NAMED])
    more = len(unreadable) - MAX_NAMED
    others = f" and {more} more" if more > 0 else ""
    return (
        f"results of {name} are not reused: {listed}{others} cannot be read; name the work "
        "yourself with identity="
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Reader:
    """Describes one value and its parts."""

    def __init__(self, floats_are_data: bool, ignored: frozenset[str]) -> None:
        self.unreadable: list[str] = []
        self._ignored = ignored
        self._is_in_package = False
        """Whether a package's function holds the value: objects of packages are its own affair."""
        self._floats_are_data = floats_are_data
        """Whether floating-point numbers count by type only; never inside objects and code."""
        self._path: list[str] = []
        self._known: dict[tuple[Any, ...], str] = {}
        self._names_read: frozenset[str] = frozenset()
        """Names of attributes that the function loads which holds the value."""
        self._kept: list[Any] = []
        """Keeps described objects alive: another one must not get the id of a known one."""
        self._open: dict[int, int] = {}
        """Objects whose description has begun: a part that refers to one of them ends a circle."""

    @contextmanager
    def within(self, place: str) -> Iterator[None]:
        """Name the place of the values that are described inside."""
        self._path.append(place)
        try:
            yield
        finally:
            self._path.pop()

    def describe(self, value: Any) -> str:
        """Return text that is equal for equal values, in every process."""
        plain = self._describe_plain(value)
        if plain is not None:
            return plain

        # Everything else may contain itself, and may be large. Of a module, other values count for
        # each function that reads it.
        number = id(value)
        key: tuple[Any, ...] = (number, self._floats_are_data)
        if isinstance(value, types.ModuleType):
            key = (*key, self._names_read)
        if key in self._known:
            return self._known[key]
        if number in self._open:
            return f"circle {len(self._open) - self._open[number]}"
        if len(self._known) > MAX_PARTS:
            return self._give_up(value, "has too many parts")
        self._open[number] = len(self._open)
        try:
            text = self._describe_parts(value)
        except RecursionError:
            text = self._give_up(value, "is nested too deeply")
        finally:
            del self._open[number]
        if len(text) > SHORT_TEXT:
            text = _digest(text)
        self._known[key] = text
        self._kept.append(value)
        return text

    def _give_up(self, value: Any, reason: str = "") -> str:
        place = self._path[-1] if self._path else "it"
        kind = type(value).__name__
        what = f"a {kind}, which {reason}" if reason else f"a {kind}"
        self.unreadable.append(f"{place} ({what})")
        return "unreadable"

    def _describe_plain(self, value: Any) -> str | None:
        """Describe values without parts; None for others."""
        kind = type(value)
        if value is None or value is Ellipsis or value is NotImplemented:
            return repr(value)
        if kind is str:
            return f"str {value!r}{content_of_file_named(value)}"
        if kind in (bool, bytes, complex, range):
            return f"{kind.__name__} {value!r}"
        if kind is int:
            return f"int {value:x}"
        if kind is float:
            return "float" if self._floats_are_data else f"float {value!r}"
        if isinstance(value, np.generic) and not isinstance(value, np.void):
            if isinstance(value, np.inexact) and self._floats_are_data:
                return str(value.dtype)
            return f"{value.dtype.str} {value.tobytes().hex()}"
        if isinstance(value, np.dtype):
            return f"dtype {value.descr if value.fields else value.str} {value.alignment}"
        return None

    def _describe_parts(self, value: Any) -> str:
        """Describe a value by its kind."""
        if isinstance(value, enum.Enum):
            return f"enum {self._name(type(value))} {value.name} {self.describe(value.value)}"
        for describe in (self._container, self._array, self._without_content):
            text = describe(value)
            if text is not None:
                return text
        with self._every_number_counts():
            code = self._code(value)
            return self._object(value) if code is None else code

    @contextmanager
    def _every_number_counts(self) -> Iterator[None]:
        before = self._floats_are_data
        self._floats_are_data = False
        try:
            yield
        finally:
            self._floats_are_data = before

    # -- containers

    def _container(self, value: Any) -> str | None:
        kind = type(value)
        if kind in (tuple, list):
            return f"{kind.__name__} [{self._sequence(value)}]"
        if kind in (set, frozenset):
            return f"{kind.__name__} [{', '.join(sorted(map(self.describe, value)))}]"
        if kind is dict or kind is types.MappingProxyType:
            items = sorted(f"{self.describe(k)}: {self._part(k, v)}" for k, v in value.items())
            return f"dict [{', '.join(items)}]"
        if isinstance(value, _VIEWS_OF_DICTS):
            return f"{kind.__name__} [{self._sequence(list(value))}]"
        if kind is slice:
            return f"slice {self.describe((value.start, value.stop, value.step))}"
        return None

    def _sequence(self, values: Any) -> str:
        kinds = set(map(type, values))
        # Long lists of numbers are data: read them as a whole.
        if kinds == {float} and self._floats_are_data:
            return f"{len(values)} float"
        if len(values) > MANY_NUMBERS and kinds <= {int, float, bool, str}:
            return _digest(repr(values))
        return ", ".join(map(self.describe, values))

    def _part(self, key: Any, value: Any) -> str:
        place = self._path[-1]
        if isinstance(key, str | int):
            place = f"{place}[{key!r}]"
        with self.within(place):
            return self.describe(value)

    # -- data, which counts by shape and type

    def _array(self, value: Any) -> str | None:
        if isinstance(value, _BUFFERS):
            with memoryview(value) as view:
                described = (view.format, view.shape, view.strides, view.readonly)
            return f"{self._name(type(value))} {described}"
        if isinstance(value, np.ndarray):
            return self._numpy_array(value)
        if _is_of_pandas(value):
            return self._table(value)
        layout = array_layout(value)
        return None if layout is None else f"{self._name(type(value))} {layout}"

    def _numpy_array(self, value: np.ndarray) -> str:
        if value.dtype.kind == "O":  # its elements are objects, and they are read
            return f"objects {value.shape} {', '.join(map(self.describe, value.flat))}"
        text = f"array {self.describe(value.dtype)} {array_layout(value)}"
        kind = type(value)
        if kind is np.ndarray:
            return text
        held = vars(value) if is_user_code(kind) and hasattr(value, "__dict__") else {}
        return f"{text} {self._name(kind)} {self._attributes(held)}"

    def _table(self, table: Any) -> str:
        """Describe a table, a column, an index or a type of pandas: labels and types, not rows."""
        kind = self._name(type(table))
        if not hasattr(table, "dtype") and not hasattr(table, "dtypes"):
            return f"{kind} {self.describe(type_of_column(table))}"
        columns = getattr(table, "columns", None)
        types = [table.dtype] if columns is None else table.dtypes
        parts = (
            shape_of(table),
            list(map(type_of_column, types)),
            [] if columns is None else list(columns),
            [kind_of_index(part) for part in (table, columns, getattr(table, "index", None))],
            getattr(table, "name", None),
            getattr(table, "attrs", None),
        )
        return f"{kind} {', '.join(map(self.describe, parts))}"

    # -- code

    def _code(self, value: Any) -> str | None:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, _BUILT_IN_FUNCTIONS):
            return self._built_in_function(value)
        return self._wrapped_code(value)

    def _wrapped_code(self, value: Any) -> str | None:
        """Describe what holds a function: a method, a partial function, a cached function."""
        if isinstance(value, types.MethodType):
            with self.within(f"the object of the method {value.__name__!r}"):
                return f"method {self.describe(value.__func__)} of {self.describe(value.__self__)}"
        if isinstance(value, functools.partial):
            return f"partial {self.describe((value.func, value.args, value.keywords))}"
        if isinstance(value, staticmethod | classmethod):
            return f"{type(value).__name__} {self.describe(value.__func__)}"
        if isinstance(value, property):
            return f"property {self.describe((value.fget, value.fset, value.fdel))}"
        if not callable(value):
            return None

        # Compiled and cached functions name the function that they were made of. It is found
        # without running code of the object, which may answer to any name.
        found = (inspect.getattr_static(value, name, None) for name in ("py_func", "__wrapped__"))
        inner = next(filter(callable, found), None)
        if inner is None:
            return None
        options = inspect.getattr_static(value, "targetoptions", None)
        return f"{self._name(type(value))} of {self.describe(inner)} {self.describe(options)}"

    def _module(self, module: types.ModuleType) -> str:
        """Describe a module by its code, and by those of its values that are read now.

        They may have changed after its import. Of an installed module, what a user put in counts.
        """
        is_user = is_user_code(module)
        names = self._names_read & vars(module).keys()
        if is_user and self._names_read & READS_ANY_ATTRIBUTE:
            names = frozenset(name for name in vars(module) if not name.startswith("__"))
        parts = [f"module {module_code(module)}"]
        for name in sorted(names):
            value = vars(module)[name]
            if is_user or (isinstance(value, types.FunctionType) and is_user_code(value)):
                with self.within(f"{module.__name__}.{name}"):
                    parts.append(f"{name}: {self.describe(value)}")
        return "\n".join(parts)

    def _function(self, function: types.FunctionType) -> str:
        is_user = is_user_code(function)
        name = f"{function.__module__}.{function.__qualname__}"
        parts = [function_code(function) if is_user else name]
        before = self._is_in_package, self._names_read
        self._is_in_package = not is_user
        if is_user:
            globals_read, attributes = names_read(function.__code__)
            self._names_read = attributes | (globals_read & READS_ANY_ATTRIBUTE)
            parts += self._read_outside(function)
        for place, value in captured_values(function, with_globals=is_user):
            if place in self._ignored:
                continue
            with self.within(place):
                parts.append(f"{place}: {self.describe(value)}")
        self._is_in_package, self._names_read = before
        return "\n".join(parts)

    def _read_outside(self, function: types.FunctionType) -> Iterator[str]:
        """Describe what code names: environment variables, files, modules that it imports."""
        environment = environment_read(function, variables_read(function))
        yield environment.text
        if not environment.is_complete:
            self.unreadable.append(
                f"environment variables that {function.__qualname__} reads (the name of one is "
                "computed)"
            )
        for code in nested_code_objects(function.__code__):
            for constant in filter(None, map(_text_of_constant, code.co_consts)):
                yield content_of_file_named(constant)
        package = str(function.__globals__.get("__package__") or "")
        for name in imports_read(function.__code__, package):
            module = sys.modules.get(name)
            with self.within(f"the import {name!r}"):
                yield code_of_import(name) if module is None else self.describe(module)

    def _built_in_function(self, function: Any) -> str:
        name = getattr(function, "__qualname__", function.__name__)
        owner = getattr(function, "__self__", None)
        if owner is None or isinstance(owner, types.ModuleType):
            return f"function {getattr(function, '__module__', '')}.{name}"
        return f"method {name} of {self.describe(owner)}"

    def _class(self, kind: type) -> str:
        if not is_user_code(kind):
            return f"class {self._name(kind)}"
        parts = [kind.__qualname__, *map(self.describe, (type(kind), *kind.__bases__))]
        parts += map(self.describe, _declared(kind))
        for name, value in sorted(vars(kind).items()):
            is_note = name in _NOTES_OF_CLASSES or isinstance(value, _DESCRIPTORS)
            if not is_note and not _is_generated(kind, name, value):
                with self.within(f"{kind.__qualname__}.{name}"):
                    parts.append(f"{name}: {self.describe(value)}")
        return "\n".join(parts)

    def _name(self, kind: type) -> str:
        if is_user_code(kind):
            return self.describe(kind)
        return f"{kind.__module__}.{kind.__qualname__}"

    # -- objects

    def _without_content(self, value: Any) -> str | None:
        if isinstance(value, np.random.Generator):
            return f"{self._name(type(value))} of {self._name(type(value.bit_generator))}"
        if isinstance(value, _STATE_IS_NO_WORK + _RANDOM_STATES):
            return self._name(type(value))
        if value is os.environ:  # code names the variables that it reads
            return "the environment"
        if isinstance(value, threading.local):
            of_this_thread = {} if self._is_in_package else vars(value)
            return f"{self._name(type(value))} {self._attributes(of_this_thread)}"
        if isinstance(value, contextvars.ContextVar):
            held = None if self._is_in_package else _value_in_context(value)
            return f"context variable {value.name} {self.describe(held)}"
        if isinstance(value, _ONE_PASS):
            return self._give_up(value)
        if isinstance(value, PurePath):
            return f"path {value}{content_of_file_named(str(value))}"
        return None

    def _object(self, value: Any) -> str:
        """Describe an object by its class and attributes, or by what `pickle` would write."""
        kind = type(value)
        name = self._name(kind)
        if self._is_in_package and not is_user_code(kind):
            return f"object {name}"
        if (attributes := attributes_of(value)) is not None:
            return f"object {name} {self._attributes(attributes)}"
        try:
            # `pickle` asks a table of functions first: compiled patterns are in it.
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:  # an object may refuse in any way
            held = getattr(value, "__dict__", None)
            if not held:
                return self._give_up(value)
            return f"object {name} {self._attributes(held)}"
        if isinstance(reduced, str):
            return f"object {name} {reduced}"
        function, arguments, *rest = reduced
        state, items, pairs = itertools.islice(itertools.chain(rest, itertools.repeat(None)), 3)
        parts = (function, arguments, state, list(items or ()), list(pairs or ()))
        return f"object {name} {', '.join(map(self.describe, parts))}"

    def _attributes(self, attributes: dict[str, Any]) -> str:
        place = self._path[-1]
        parts = []
        for name, value in sorted(attributes.items()):
            if place_of_attribute(name) in self._ignored:
                continue
            with self.within(f"{place_of_attribute(name)} of {place}"):
                parts.append(f"{name}: {self.describe(value)}")
        return ", ".join(parts)


def _text_of_constant(constant: Any) -> str:
    return constant if isinstance(constant, str) else ""


def _declared(kind: Any) -> list[Any]:
    """Return members of an enum, or fields of a dataclass with their defaults."""
    if issubclass(kind, enum.Enum):
        return [{name: member.value for name, member in kind.__members__.items()}]
    if "__dataclass_fields__" not in vars(kind):
        return []
    return [
        [field.name, field.default, field.default_factory, field.init, field.kw_only]
        for field in dataclasses.fields(kind)
    ]


def _value_in_context(variable: contextvars.ContextVar[Any]) -> Any:
    try:
        return variable.get()
    except LookupError:
        return None


def _is_of_pandas(value: Any) -> bool:
    """Whether this is a table, column, index, array or type of number of pandas."""
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return False
    kinds = (
        *(pandas.DataFrame, pandas.Series, pandas.Index),
        *(pandas.api.extensions.ExtensionArray, pandas.api.extensions.ExtensionDtype),
    )
    return isinstance(value, kinds)


def type_of_column(dtype: Any) -> Any:
    """Describe a type of number of pandas; the labels of categories count."""
    categories = getattr(dtype, "categories", None)
    if categories is None:
        return str(dtype)
    return ["category", bool(dtype.ordered), str(categories.dtype), list(categories)]


def kind_of_index(index: Any) -> Any:
    """Describe an index of pandas without its labels; None for other values."""
    if not hasattr(index, "names"):
        return None
    levels = getattr(index, "levels", [index])
    return [
        type(index).__name__,
        list(index.names),
        getattr(index, "freqstr", None),
        [str(level.dtype) for level in levels],
    ]


def array_layout(value: Any) -> str | None:
    """Describe shape, dtype and memory layout of an array-like; None for other values.

    An array whose last axis varies fastest, without gaps, needs no word on its layout.
    """
    kind = type(value)  # an object may answer to any name, its class does not
    shape = shape_of(value)
    if not (hasattr(kind, "shape") and hasattr(kind, "dtype")):
        return None
    words = [str(shape), str(value.dtype).removeprefix("torch.")]
    for name in ("device", "layout", "requires_grad", "format", "nnz", "name"):
        held = getattr(value, name, None)
        if held is not None and not callable(held):
            words.append(f"{name}={held}")
    # A sparse matrix has indices of some type, in any order.
    for name in ("indices", "offsets", "row"):
        held = getattr(value, name, None)
        if isinstance(held, np.ndarray):
            words.append(f"{name}={held.dtype}")
    if not getattr(value, "has_sorted_indices", True):
        words.append("unsorted")
    if layout := layout_text(value):
        words.append(layout)
    return " ".join(words)


def layout_text(value: Any) -> str:
    """Describe memory order and flags of an array or tensor; empty if they are the usual ones."""
    flags = getattr(value, "flags", None)
    if flags is not None and hasattr(flags, "c_contiguous"):
        words = [] if flags.c_contiguous else [_order(value)]
        words += [] if flags.writeable else ["read-only"]
        words += [] if flags.aligned else ["unaligned"]
        return " ".join(words)
    if callable(getattr(value, "is_contiguous", None)) and callable(getattr(value, "stride", None)):
        return _tensor_layout(value)
    return ""


def _order(array: np.ndarray) -> str:
    return "F" if array.flags.f_contiguous else f"strides={tuple(array.strides)}"


def _tensor_layout(tensor: Any) -> str:
    # A tensor may change its elements when they are read, and refuse to be changed.
    words = [name for name in ("is_conj", "is_neg", "is_inference") if getattr(tensor, name)()]
    with suppress(RuntimeError):  # a sparse tensor
        if not tensor.is_contiguous():
            words.append(f"strides={tuple(tensor.stride())}")
    return " ".join(words)


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an array, table, sparse matrix or similar object; empty for others."""
    shape = value.shape if hasattr(type(value), "shape") else ()
    whole = isinstance(shape, tuple) and all(isinstance(n, int | np.integer) for n in shape)
    return tuple(map(int, shape)) if whole else ()


def _is_generated(kind: type, name: str, value: Any) -> bool:
    """Whether `enum` or `dataclasses` made this: members and fields count by themselves."""
    if issubclass(kind, enum.Enum):
        is_own = isinstance(value, types.FunctionType | property | classmethod | staticmethod)
        return name in kind.__members__ or not is_own
    if not dataclasses.is_dataclass(kind) or not isinstance(value, types.FunctionType):
        return False
    return value.__code__.co_filename == "<string>"


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object of a user's class; None if it has other content, too."""
    kind = type(value)
    if not is_user_code(kind) or isinstance(value, _HAS_CONTENT_OF_ITS_OWN):
        return None
    slots = [name for base in kind.__mro__ for name in _slots_of(base) if hasattr(value, name)]
    if not hasattr(value, "__dict__") and not slots:
        return None
    return {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(_mangled(kind, name) for name in names if name not in ("__dict__", "__weakref__"))


def _mangled(kind: type, name: str) -> str:
    """Return the name under which Python keeps a private attribute of a class."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
