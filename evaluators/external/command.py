"""What is run for a recipe, and how whoever knows a trainer says it: a function from a request to a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frontrunner.evaluators.probe.settings import ProbeSettings
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """What a command is asked for: a recipe of a problem, measured for at most `probe.most_steps` steps.

    Files of the command are written to `run_folder`, which exists by the time it runs. `campaign_folder` is where the
    command starts.
    """

    problem: Problem
    recipe: Recipe
    probe: ProbeSettings
    run_folder: Path
    campaign_folder: Path
    seed: int = 0


def request_of(setup: ProbeSetup, recipe: Recipe, run_folder: Path) -> CommandRequest:
    """What the command of a campaign's recipe is asked for."""
    return CommandRequest(
        problem=setup.problem,
        recipe=recipe,
        probe=setup.probe,
        run_folder=run_folder,
        campaign_folder=setup.command.start_folder,
        seed=setup.seed,
    )


@dataclass(frozen=True, kw_only=True)
class Command:
    """One run of a trainer.

    `arguments` is the program and its arguments, as a list and never as a shell's line; `files` are written to the run
    folder first, by name; `environment` is set beside what the campaign passes. `log_patterns` are searched in each
    line of the log (`patterns.Pattern`).
    """

    arguments: tuple[str, ...]
    log_patterns: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


MakeCommand = Callable[[CommandRequest], Command | Reason]
"""The command of a recipe, or the reason for which the trainer cannot run it."""
