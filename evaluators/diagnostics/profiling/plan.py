"""A profile of a stored recipe, ready to run: what is looked at, and whether this machine can show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from frontrunner.evaluators.probe.preflight import prepare_recipe_here
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.spaces.errors import InvalidInput, require_at_least
from frontrunner.spaces.recipe import Recipe

PATIENCE = 4.0
"""How many times longer than a probe a profile may take, and each of its steps: tracing and writing traces cost."""

UNTRACED_STEPS = 5
"""Measured before the profiler is on, where the campaign's probes are adaptive: so many show the usual step."""
MOST_STEPS = 50
"""Traced steps: a trace takes megabytes a step and a rank."""


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """What is looked at: `steps` under torch's profiler and as many under pyinstrument, where that is installed.

    `folder` None is a new one, by recipe, beside the campaign's probes.
    """

    steps: int = 3
    folder: Path | None = None

    def __post_init__(self) -> None:
        require_at_least("profile", 1, steps=self.steps)
        if self.steps > MOST_STEPS:
            raise InvalidInput(f"profile.steps = {self.steps}: expected at most {MOST_STEPS}")


@dataclass(frozen=True, kw_only=True)
class ProfilePlan:
    """A profile ready to run.

    `measured_step_time_s` is the median that the campaign's probes measured, None where none did. `differences` says
    how this machine is not what they ran on. `samples_host` says whether pyinstrument is installed.
    """

    recipe_id: str
    recipe: Recipe
    setup: ProbeSetup
    folder: Path
    steps: int
    samples_host: bool
    measured_step_time_s: float | None
    differences: tuple[str, ...]


def plan(
    *,
    recipe_id: str,
    recipe: Recipe,
    setup: ProbeSetup,
    measured_step_time_s: float | None,
    settings: ProfileSettings,
    anyway: bool,
) -> ProfilePlan:
    """Check a profile against this machine; nothing is written.

    Raises `InvalidInput` if this machine differs from the recipe's, unless `anyway`, if the recipe needs more than
    one node, if its engine is not installed, and if the folder is there already.
    """
    differences = prepare_recipe_here(recipe_id, recipe, setup.problem.cluster, doing="profile", anyway=anyway)
    return ProfilePlan(
        recipe_id=recipe_id,
        recipe=recipe,
        setup=_patient(setup, recipe),
        folder=_folder(settings.folder, setup.work_folder.parent / "profiles" / recipe_id),
        steps=settings.steps,
        samples_host=find_spec("pyinstrument") is not None,
        measured_step_time_s=measured_step_time_s,
        differences=differences,
    )


def _patient(setup: ProbeSetup, recipe: Recipe) -> ProbeSetup:
    """The campaign's setup with longer deadlines, for this recipe's engine alone."""
    probe = setup.probe
    patient = replace(
        probe,
        measured_steps=probe.measured_steps or UNTRACED_STEPS,
        deadline_s=PATIENCE * probe.deadline_s,
        step_deadline_s=PATIENCE * probe.step_deadline_s,
    )
    return replace(setup, probe=patient, engines=(recipe.engine,))


def _folder(named: Path | None, usual: Path) -> Path:
    """The named folder, or the first of usual/1, usual/2, ... that is free."""
    if named is not None:
        if named.exists() and (not named.is_dir() or any(named.iterdir())):
            raise InvalidInput(f"{named} is there already and not an empty folder", hint="choose another --folder")
        return named.resolve()
    return next(path for path in _numbered(usual) if not path.exists()).resolve()


def _numbered(usual: Path) -> Iterator[Path]:
    return (usual / str(number) for number in count(1))
