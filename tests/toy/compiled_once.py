"""C that is compiled once in a test, as far as its text and options are the same."""

from foretune.collect.wrapped import native


def compile_once(monkeypatch, compiled):
    """Take what is ``compiled``; a verification compiles all anew, which has its own tests."""
    load = native._load

    def loaded(build):
        key = build.text, build.options
        if key not in compiled:
            compiled[key] = load(build)
        return compiled[key]

    monkeypatch.setattr(native, "_load", loaded)
