"""Where a run came from: who started what, and in which state the code around it was."""

import subprocess

from foretune.version import __version__


def provenance() -> dict[str, str]:
    """Return tags: MLflow's own, Foretune's version, and git's state of the working directory."""
    from mlflow.tracking.context.registry import resolve_tags

    tags = {k: str(v) for k, v in resolve_tags().items()}
    return {**tags, "foretune.version": __version__, **git_state()}


def git_state() -> dict[str, str]:
    """Return the commit checked out here, and whether files differ from it; nothing outside git."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "-uno")
    if commit is None or changes is None:
        return {}
    return {"mlflow.source.git.commit": commit, "foretune.git.changed": str(bool(changes)).lower()}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
