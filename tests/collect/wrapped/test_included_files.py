"""Files that a source includes: `collect/wrapped/included_files.py`."""

from foretune.collect.wrapped.included_files import find_included, option_folders


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
