"""What a function reads beside its arguments counts: `foretune/support/identity.py`."""

import importlib.util
import itertools
import json
import sys
import textwrap

import pytest

from foretune.support.identity import identify

NUMBERS = itertools.count()

# Each is a module with a function `work`, which does other work if `@@` is 1 or 2.
READS = {
    "metaclass": """
        class Kind(type):
            size = @@
        class Job(metaclass=Kind): pass
        def work(): return Job.size
    """,
    "property of a metaclass": """
        class Kind(type):
            @property
            def size(cls): return @@
        class Job(metaclass=Kind): pass
        def work(): return Job.size
    """,
    "attribute of a parent": """
        class Base:
            size = @@
        class Job(Base):
            size = 7
            def run(self): return super().size
        job = Job()
        def work(): return job.run()
    """,
    "name in a class inside": """
        SIZE = @@
        def work():
            class Job:
                sizes = [SIZE for _ in range(1)]
            return Job.sizes
    """,
    "eval": """
        SIZE = @@
        def work(): return eval("SIZE")
    """,
    "globals": """
        SIZE = @@
        def work(): return globals()["SIZE"]
    """,
    "its own module": """
        import sys
        SIZE = @@
        def work(): return sys.modules[__name__].SIZE
    """,
    "constant that a function imports": """
        def work():
            from helper import SIZE
            return SIZE
    """,
    "module that a function imports": """
        def work():
            import helper
            return helper.SIZE
    """,
    "module in an object": """
        import state
        class Job: pass
        job = Job()
        job.state = state
        state.SIZE = @@
        def work(): return job.state.SIZE
    """,
    "module in a dict": """
        import state
        MODULES = {"state": state}
        state.SIZE = @@
        def work(): return MODULES["state"].SIZE
    """,
    "value of a module by name": """
        import state
        state.SIZE = @@
        def work(): return getattr(state, "SIZE")
    """,
    "value that a module's function reads": """
        import state
        state.SIZE = @@
        def work(): return state.size()
    """,
    "function without a file": """
        scope = {}
        exec("def size(): return @@", scope)
        size = scope["size"]
        def work(): return size()
    """,
    "factory of a field": """
        import dataclasses
        @dataclasses.dataclass
        class Job:
            sizes: list = dataclasses.field(default_factory=lambda: [@@])
        def work(): return Job().sizes
    """,
    "default of a slot": """
        import dataclasses
        @dataclasses.dataclass(slots=True)
        class Job:
            size: int = @@
        def work(): return Job().size
    """,
    "method of an enum": """
        import enum
        class Mode(enum.Enum):
            EVEN = 1
            def size(self): return @@
        def work(): return Mode.EVEN.size()
    """,
    "method of a member": """
        import enum
        class Mode(enum.Enum):
            EVEN = 1
            def size(self): return @@
        MODE = Mode.EVEN
        def work(): return MODE.size()
    """,
    "value of this thread": """
        import threading
        LOCAL = threading.local()
        LOCAL.size = @@
        def work(): return LOCAL.size
    """,
    "function put into a library": """
        import json
        json.size = lambda: @@
        def work(): return json.size()
    """,
    "private slot": """
        class Job:
            __slots__ = ("__size",)
            def __init__(self, size): self.__size = size
            def size(self): return self.__size
        job = Job(@@)
        def work(): return job.size()
    """,
    "method of a nested attribute": """
        class Part:
            def size(self): return @@
        class Job:
            def __init__(self): self.part = Part()
        job = Job()
        def work(): return job.part.size()
    """,
    "descriptor": """
        class Size:
            def __init__(self, size): self.size = size
            def __get__(self, instance, owner=None): return self.size
        class Job:
            size = Size(@@)
        def work(): return Job().size
    """,
    "single dispatch": """
        import functools
        @functools.singledispatch
        def size(x): return 0
        @size.register(int)
        def _(x): return @@
        def work(): return size(1)
    """,
}
STATE = "SIZE = 0\ndef size(): return SIZE\n"


@pytest.fixture
def identity_of(tmp_path, monkeypatch):
    """Return the identity of the function `work` of a module with the given text."""

    def read(text, size=1):
        folder = tmp_path / str(next(NUMBERS))
        folder.mkdir()
        (folder / "helper.py").write_text(f"SIZE = {size}\n")
        (folder / "state.py").write_text(STATE)
        file = folder / "working.py"
        file.write_text(textwrap.dedent(text).replace("@@", str(size)))
        for name in ("helper", "state", "working"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            spec = importlib.util.spec_from_file_location("working", file)
            module = importlib.util.module_from_spec(spec)
            sys.modules["working"] = module
            spec.loader.exec_module(module)
            found = identify(module.work)
        vars(json).pop("size", None)
        return found

    yield read
    for name in ("helper", "state", "working"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("text", READS.values(), ids=READS)
def test_identify_what_a_function_reads_counts(identity_of, text):
    one, other, again = (identity_of(text, size) for size in (1, 2, 1))
    assert one.digest != other.digest
    assert one == again
    assert not one.unreadable


@pytest.mark.parametrize(
    "text",
    [
        "import os\ndef work(): return os.environ['TOY_SIZE']",
        "import os\ndef work(): return os.environ.get('TOY_SIZE', '1')",
        "import os\ndef work(): return 'TOY_SIZE' in os.environ",
        "import os\nNAME = 'TOY_SIZE'\ndef work(): return os.getenv(NAME)",
        "import os\ndef work(name='TOY_SIZE'): return os.getenv(name)",
        "from os import environ as e\ndef work(): return e['TOY_SIZE']",
        "from os import getenv as g\ndef work(): return g('TOY_SIZE')",
        "import os\nwork = lambda: os.environ['TOY_SIZE']",
        "import os\nother, work = lambda: os.environ['O'], lambda: os.getenv('TOY_SIZE', 'O')",
        "import os\nwork = (lambda name: lambda: os.environ[name])('TOY_SIZE')",
        """
import os
class Job:
    def size(self): return os.environ['TOY_SIZE']
def work(): return Job().size()
""",
    ],
)
def test_identify_environment_variable_counts(identity_of, monkeypatch, text):
    monkeypatch.setenv("TOY_SIZE", "1")
    one = identity_of(text)
    monkeypatch.setenv("UNRELATED", "1")
    assert identity_of(text) == one
    monkeypatch.setenv("TOY_SIZE", "2")
    assert identity_of(text).digest != one.digest
    assert not one.unreadable


@pytest.mark.parametrize(
    "text",
    [
        "import os\ndef work(name): return os.environ[name]",
        "import os\ndef work(): return os.environ['TOY' + str(1)]",
        "import os\ndef work(): return dict(os.environ)",
        "import os\ndef work(): return [name for name in os.environ]",
        "import os\ndef work(): return getattr(os, 'environ')['TOY_SIZE']",
        "import os\ndef work(): return os.path.expandvars('$TOY_SIZE')",
        "import os\ndef work(): return os.environb[b'TOY_SIZE']",
        "def work():\n    from os import environ\n    return environ['TOY_SIZE']",
        "import os\nwork = lambda: os.environ['TOY' + str(1)]",
        "import os\nwork = lambda: os.getenv(f'TOY_{1}', 'TOY')",
        "import os\nother, work = lambda: os.environ['O'], lambda: dict(os.environ)",
        "import os\nexec('def work(): return os.environ[str(1)]')",
        "import os\nwork = eval('lambda: os.environ[\"TOY\" + str(1)]')",
    ],
)
def test_identify_environment_variable_of_unknown_name_is_named(identity_of, text):
    assert "environment variables that" in identity_of(text).unreadable[0]


@pytest.mark.parametrize(
    "text",
    [
        "def work(): return open({!r}).read()",
        "NAME = {!r}\ndef work(): return open(NAME).read()",
        "import pathlib\nPATH = pathlib.Path({!r})\ndef work(): return PATH.read_text()",
        "def work(name={!r}): return open(name).read()",
    ],
)
def test_identify_file_that_code_names_counts(identity_of, tmp_path, text):
    data = tmp_path / "data.txt"
    data.write_text("1")
    one = identity_of(text.format(str(data)))
    data.write_text("22")
    assert identity_of(text.format(str(data))).digest != one.digest
    data.write_text("1")
    assert identity_of(text.format(str(data))) == one
