"""Files that decide what a program computes: `collect/wrapped/program_files.py`."""

import shlex

import pytest

from foretune.collect.wrapped.program_files import counted_variables, find_program_files


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.py").write_text("import helper\nfrom inner.part import x\n")
    (tmp_path / "helper.py").write_text("import json\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").write_text("")
    (tmp_path / "inner" / "part.py").write_text("x = 1\n")
    (tmp_path / "inner" / "__main__.py").write_text("from inner import part\n")
    (tmp_path / "data.txt").write_text("1 2 3\n")
    (tmp_path / "work.c").write_text('#include "work.h"\nint main() { return N; }\n')
    (tmp_path / "work.h").write_text("#define N 0\n")
    (tmp_path / "work").write_bytes(b"\x7fELF\0")
    (tmp_path / "Makefile").write_text("work: work.c\n")
    (tmp_path / "words.txt").write_text("-DN=1\n")
    (tmp_path / "libfast.a").write_bytes(b"!<arch>")
    (tmp_path / "all.sh").write_text("python3 run.py\n")
    return tmp_path


def names(folder, words, build="", others=()):
    found = find_program_files(shlex.split(words), build, others, str(folder))
    return {path.name for path in found.paths if path.is_relative_to(folder)}


@pytest.mark.parametrize(
    ("words", "build", "expected"),
    [
        ("python3 run.py 4", "", {"run.py", "helper.py", "__init__.py", "part.py"}),
        ("python3 -m inner 4", "", {"__main__.py", "__init__.py", "part.py"}),
        ("python3 -c pass --input=data.txt", "", {"data.txt"}),
        ("sh -c 'cat<data.txt|sort'", "", {"data.txt"}),
        ("./work", "", {"work"}),
        ("./work data.txt", "cc work.c -o work", {"work.c", "work.h", "data.txt"}),
        ("./work", "make", {"Makefile"}),
        ("python3 -c 'import helper'", "", {"helper.py"}),
        ("./work --inputs=a.txt,data.txt", "", {"work", "data.txt"}),
        ("./work @words.txt", "", {"work", "words.txt"}),
        ("sh all.sh", "", {"all.sh", "run.py", "helper.py", "__init__.py", "part.py"}),
        (
            "./work",
            "cc @words.txt work.c -L. -lfast",
            {"work.c", "work.h", "words.txt", "libfast.a"},
        ),
    ],
)
def test_find_program_files_of_a_command(folder, words, build, expected):
    assert names(folder, words, build) == expected


def test_find_program_files_counts_the_program_in_path(folder):
    found = find_program_files(["sh", "-c", "true"], "", (), str(folder))
    assert [path.is_absolute() for path in found.paths] == [True]


def test_find_program_files_build_without_named_sources_is_unknown(folder):
    found = find_program_files(["./work"], "make", (), str(folder))
    assert found.unknown == ("the sources of the build 'make' (name them with sources=)",)
    assert find_program_files(["./work"], "make", ("work.c",), str(folder)).unknown == ()


def test_counted_variables_change_the_speed_of_programs():
    given = {"OMP_NUM_THREADS": "2", "HOME": "/root", "LD_PRELOAD": "x.so", "PYTHONHASHSEED": "1"}
    assert counted_variables(given) == {"LD_PRELOAD": "x.so", "OMP_NUM_THREADS": "2"}
