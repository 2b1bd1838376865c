"""A kernel's hash: the code that it runs, wherever it stands, and nothing else."""

import importlib
import sys
import threading
import zipfile
from textwrap import dedent

import pytest

from foretune.family import Family
from foretune.kernel import Kernel
from foretune.registry import load, registered
from foretune.support import code_hash, module_code
from foretune.support.identity import source_hash_of_function

PACKAGE = {
    "authors/__init__.py": "NAME = 'authors'",
    "authors/kernels/__init__.py": "",
    "authors/kernels/scan.py": """
        import numpy
        from foretune.family import Family
        from authors import blocks
        from .tiles import TILE

        class Scan(Family):
            name = "scan"

            def cost(self, problem, config):
                from authors.work import flops
                return flops(TILE)
        """,
    "authors/kernels/tiles.py": "from ..sizes import MOST\nTILE = 1",
    "authors/sizes.py": "import authors.kernels.scan\nMOST = 8",
    "authors/blocks.py": "",
    "authors/work.py": "flops = float",
    "authors/report.py": "WIDTH = 80",
    "beside.py": "",
    "scan_alone.py": """
        import beside
        from foretune.family import Family

        class Scan(Family):
            name = "scan"

            def cost(self, problem, config): ...
        """,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def hash_of(module):
    """Return the hash as a new process finds it."""
    code_hash.code_hash.cache_clear()
    module_code._read.cache_clear()
    return importlib.import_module(module).Scan().source_hash


@pytest.mark.parametrize(
    "file",
    ["kernels/scan", "kernels/tiles", "sizes", "blocks", "work"],
)
def test_code_that_a_kernel_imports_is_its_code(folder, file):
    before = hash_of("authors.kernels.scan")
    assert before == hash_of("authors.kernels.scan")
    with (folder / "authors" / f"{file}.py").open("a") as f:
        f.write("\nADDED = 1\n")
    assert hash_of("authors.kernels.scan") != before


@pytest.mark.parametrize("file", ["authors/report", "authors/__init__", "beside", "scan_alone"])
def test_code_hash_ignores_files_not_imported(folder, file):
    before = hash_of("authors.kernels.scan")
    with (folder / f"{file}.py").open("a") as f:
        f.write("\nADDED = 1\n")
    assert hash_of("authors.kernels.scan") == before


def test_words_and_layout_do_not_count(folder):
    before = hash_of("authors.kernels.scan")
    path = folder / "authors" / "kernels" / "scan.py"
    text = path.read_text().replace("return flops(TILE)", "# why\n        return flops( TILE )")
    path.write_text(text.replace('name = "scan"', '"""What it is."""\n\n    name = "scan"'))
    assert hash_of("authors.kernels.scan") == before


@pytest.mark.parametrize(("root", "counts"), [("project", True), ("site-packages", False)])
def test_code_hash_single_file_includes_its_folder(folder, monkeypatch, root, counts):
    place = folder / root
    place.mkdir()
    for name in ("beside.py", "scan_alone.py"):
        (folder / name).rename(place / name)
    monkeypatch.syspath_prepend(str(place))
    before = hash_of("scan_alone")
    (place / "beside.py").write_text("ADDED = 1")
    assert (hash_of("scan_alone") != before) == counts


def test_code_hash_class_without_file_is_its_name():
    one, other = (
        type(name, (Family,), {"cost": None, "__module__": "nowhere"}) for name in ("One", "Other")
    )
    assert code_hash.code_hash(one, Family) != code_hash.code_hash(other, Family)


def test_values_that_a_method_or_a_lambda_holds_are_its_code():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor
            self.lock = threading.Lock()

        def apply(self, x):
            return x * self.factor

    same, other, third = (source_hash_of_function(Scaled(k).apply) for k in (1, 1, 2))
    assert same == other != third
    lambdas = (lambda x, size=1: x * size, lambda x, size=2: x * size)
    assert len(set(map(source_hash_of_function, lambdas))) == 2


ZIPPED = """
from foretune.family import Cost, Family

class Zipped(Family):
    name = "zipped"

    def cost(self, problem, config):
        return Cost(NUMBER, 1.0)
"""


def test_code_hash_class_in_archive_is_that_of_its_methods(tmp_path, monkeypatch):
    hashes = set()
    for number in ("1.0", "2.0"):
        with zipfile.ZipFile(tmp_path / f"{number}.zip", "w") as archive:
            archive.writestr("zipped.py", ZIPPED.replace("NUMBER", number))
        monkeypatch.syspath_prepend(tmp_path / f"{number}.zip")
        monkeypatch.delitem(sys.modules, "zipped", raising=False)
        hashes.add(importlib.import_module("zipped").Zipped().source_hash)
    assert len(hashes) == 2


def test_code_hash_subclass_of_ours_is_ours(folder):
    matmul = load("kernels", "matmul")
    theirs = type("Theirs", (matmul,), {"__module__": "nowhere"})
    assert theirs().source_hash == matmul().source_hash


@pytest.mark.parametrize("name", ["matmul", "softmax", "quantized_matvec"])
@pytest.mark.parametrize("part", ["simd", "numba_codegen"])
def test_generated_code_is_cpu_kernels_code(name, part, monkeypatch):
    kind = load("kernels", name)
    before = kind().source_hash
    read = module_code._read
    monkeypatch.setattr(
        module_code,
        "_read",
        lambda path: (read(path)[0], read(path)[1] + "#" * (path.stem == part)),
    )
    code_hash.code_hash.cache_clear()
    assert kind().source_hash != before
    code_hash.code_hash.cache_clear()


def test_families_have_hashes_of_their_code():
    families = {name: load("families", name) for name in registered("families")}
    hashes = {name: family().source_hash for name, family in families.items()}
    assert hashes["norm"] == hashes["elementwise"]  # of one file
    assert len(set(hashes.values())) == len({f.__module__ for f in families.values()})
    assert not issubclass(load("families", "norm"), Kernel)


def test_code_files_are_those_not_installed(folder, tmp_path, monkeypatch):
    kind = importlib.import_module("authors.kernels.scan").Scan
    assert code_hash.uninstalled_sources(kind, Family) == [folder / "authors"]
    alone = importlib.import_module("scan_alone").Scan
    assert code_hash.uninstalled_sources(alone, Family) == [
        folder / "beside.py",
        folder / "scan_alone.py",
    ]
    assert code_hash.uninstalled_sources(load("kernels", "matmul"), Kernel) == []
