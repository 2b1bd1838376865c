"""Files that a source includes: `collect/wrapped/included_files.py`."""

import pytest

from foretune.collect.wrapped.included_files import (
    environment_folders,
    files_in_options,
    find_included,
    option_folders,
)


def test_find_included_follows_headers_of_headers(tmp_path):
    (tmp_path / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text("#define B 1\n")
    found = find_included(['#include "a.h"\n#include <math.h>'], (), [tmp_path])
    assert {path.name for path in found.paths} == {"a.h", "b.h"}
    assert found.missing == ()


def test_find_included_digest_changes_with_the_content(tmp_path):
    header = tmp_path / "a.h"
    header.write_text("#define A 1\n")
    before = find_included(['# include "a.h"'], (), [tmp_path]).digest()
    header.write_text("#define A 2\n")
    assert find_included(['# include "a.h"'], (), [tmp_path]).digest() != before


def test_find_included_names_what_is_missing(tmp_path):
    found = find_included(['#include "nowhere.h"\n#include HEADER\n'], (), [tmp_path])
    assert found.missing == ("nowhere.h", "HEADER")


def test_find_included_leaves_out_given_files_and_circles(tmp_path):
    (tmp_path / "a.h").write_text('#include "a.h"\n#include "given.h"\n')
    found = find_included(['#include "a.h"'], ("given.h",), [tmp_path])
    assert [path.name for path in found.paths] == ["a.h"]
    assert found.missing == ()


def test_option_folders_attached_or_separate():
    assert option_folders(["-Ione", "-I two", "-isystem", "three", "-O3"]) == [
        "one",
        "two",
        "three",
    ]


def test_environment_folders_of_headers_count(tmp_path, monkeypatch):
    (tmp_path / "fast.h").write_text("")
    monkeypatch.setenv("CPATH", f"/nowhere:{tmp_path}")
    monkeypatch.delenv("C_INCLUDE_PATH", raising=False)
    found = find_included(["#include <fast.h>"], (), environment_folders())
    assert [path.name for path in found.paths] == ["fast.h"]


def test_find_included_data_counts(tmp_path):
    (tmp_path / "data.bin").write_text("")
    texts = ['asm(".incbin \\"data.bin\\"");', '#embed "data.bin"', '  .incbin "data.bin"']
    for text in texts:
        found = find_included([text], (), [tmp_path])
        assert [path.name for path in found.paths] == ["data.bin"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-O2", "more.o"], {"more.o"}),
        (["@options.txt"], {"options.txt", "more.o"}),
        (["-L.", "-lfast"], {"libfast.a"}),
        (["-L. -l:libfast.a"], {"libfast.a"}),
        (["-include", "more.o"], {"more.o"}),
        (["-lm", "-O2"], set()),
    ],
)
def test_files_in_options_are_found(tmp_path, options, expected):
    (tmp_path / "more.o").write_bytes(b"")
    (tmp_path / "libfast.a").write_bytes(b"")
    (tmp_path / "options.txt").write_text("-O3 more.o\n")
    assert {path.name for path in files_in_options(options, tmp_path)} == expected
