"""``foretune policy``: train a policy on a predictor, and let it propose configurations at once."""

from pathlib import Path

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.console import progress_bar
from foretune.errors import PolicyError
from foretune.lazy import require
from foretune.problem import Problem

HELD_OUT_EVERY = 8
"""One in so many problems is not learned from, but scored."""
MAX_SCORED = 8
"""Most of the problems learned from that are scored."""

policy = typer.Typer(help="Train a policy that proposes configurations at once, without searching.")


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(policy, name="policy")


@policy.command()
def train(
    predictor: str = typer.Argument(help=f"{options.PREDICTOR_HELP}: what it says is the reward."),
    problems: list[str] = typer.Option(
        ["64"], help="How many to draw, or M=…,N=…;M=…,N=… (repeatable); nothing is measured."
    ),
    factored: bool = typer.Option(
        False, help="One agent per group of parameters (tile_x, tile_y), not one for all."
    ),
    updates: int = typer.Option(300, help="Of the policy's weights."),
    objective: str = options.OBJECTIVE,
    device: str = options.DEVICE,
    out: Path = typer.Option(..., help="Folder for the policy."),
    seed: int = options.SEED,
    as_json: bool = options.JSON,
) -> None:
    """Train a policy over many problems; one in eight is held out and scored."""
    require("torch", "rl", "a policy")  # before what takes long
    from foretune.models.saved.lookup import read_predictor
    from foretune.registry import get_kernel
    from foretune.search.policies.policy import Policy, name_groups
    from foretune.search.policies.reinforce import TrainingSchedule
    from foretune.search.policies.tasks import predicted_tasks

    options.require_positive_int(updates, "--updates")
    loaded = read_predictor(predictor)
    kernel, parsed_objective = get_kernel(loaded.kernel_name_), options.read_objective(objective)
    wanted = options.read_problems(kernel, problems, seed)
    tasks = predicted_tasks(
        loaded, kernel, wanted, options.read_any_device(device), parsed_objective
    )
    held_out_tasks, training_tasks = (
        tasks[: len(tasks) // HELD_OUT_EVERY],
        tasks[len(tasks) // HELD_OUT_EVERY :],
    )
    groups = name_groups(tasks[0].space.names) if factored else None
    schedule = TrainingSchedule(updates=updates)
    with progress_bar() as progress:
        trained = Policy.train(
            training_tasks, groups, schedule, seed, kernel.name, progress=progress
        )
    trained.save(out)
    output = Output(as_json)
    parts = {"learned from": training_tasks[:MAX_SCORED], "held out": held_out_tasks}
    scores = {name: trained.score(part) for name, part in parts.items() if part}
    output.table(
        "predicted, times better than the median configuration",
        ("problems", "first proposal", "best of 10", "best of 1,000 random"),
        [[name, *(f"{value:.2f}" for value in s.values())] for name, s in scores.items()],
    )
    output.say(f"\npolicy: {out}")
    output.result(
        {
            "out": str(out),
            "groups": trained.groups,
            "learned_from": scores["learned from"],
            "held_out": scores.get("held out"),
            "training": trained.training,
        }
    )


@policy.command()
def propose(
    folder: Path = typer.Argument(help="Folder of a policy.", metavar="POLICY"),
    problem: str = typer.Option(..., help="M=…,N=…,…"),
    top: int = typer.Option(10, help="How many to propose."),
    device: str = options.DEVICE,
    as_json: bool = options.JSON,
) -> None:
    """Propose configurations of a problem, likeliest first, without predicting or measuring."""
    from foretune.registry import get_kernel
    from foretune.search.policies.policy import Policy
    from foretune.search.policies.tasks import Task

    options.require_positive_int(top, "--top")
    loaded = Policy.load(folder)
    if not loaded.kernel:
        raise PolicyError(f"{folder} does not say of which kernel it is: use it from Python")
    kernel = get_kernel(loaded.kernel)
    wanted = kernel.problem(Problem.parse(problem))  # it is not run: it need not fit in memory
    task = Task(kernel.space(wanted), wanted, options.read_any_device(device))
    proposals = loaded.propose(task, top)
    output = Output(as_json)
    output.table(
        f"{kernel.name} {wanted}: proposed",
        ("probability", "configuration"),
        [[f"{p:.2g}", " ".join(f"{k}={v}" for k, v in c.items())] for c, p in proposals],
    )
    output.result(
        {
            "problem": dict(wanted),
            "configs": [{"config": dict(c), "probability": p} for c, p in proposals],
        }
    )
