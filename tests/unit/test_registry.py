"""Evaluators of other distributions, found by their entry points in a folder on the path."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from frontrunner.evaluators.protocol import ImmediateEvaluator
from frontrunner.evaluators.registry import (
    EVALUATORS,
    GROUP,
    EvaluatorKind,
    commands_of,
    make_evaluator,
    require_evaluator,
)
from frontrunner.evaluators.runs.probes import Probes
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from support.campaigns import order, setup_of, spec_of, tiny, wait_for

EXAMPLE = Path(__file__).parent.parent / "support" / "plugin_example.py"
PAGE = Path(__file__).parent.parent.parent / "docs" / "other-trainers.md"
A_CLASS = """
from frontrunner.evaluators.protocol import ImmediateEvaluator
from frontrunner.results.outcome import Failure, FailureKind

class Never(ImmediateEvaluator):
    def __init__(self, setup):
        super().__init__()
        self.problem = setup.problem

    def _outcome(self, recipe):
        return Failure(kind=FailureKind.CRASHED, message=f"no {self.problem.precision} today")
"""
A_TRAINER = """
import sys
from frontrunner.evaluators.programs.command import Command

def made(request):
    script = "import time\\nfor i in range(9): time.sleep(0.01); print('did', i + 1, request_says)"
    script = script.replace("request_says", repr(request.recipe.describe()))
    return Command(arguments=(sys.executable, "-c", script), log_patterns=(r"did (?P<step>\\d+)",))

def mistaken(request):
    return request.recipe.no_such_field

def nothing(request):
    return None

a_number = 3
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution of one module into a folder on the path, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def add(distribution: str, code: str, **points: str) -> None:
        module = distribution.replace("-", "_")
        site = tmp_path / "site"
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(code)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        lines = [f"{name.replace('_', '-')} = {module}:{what}" for name, what in points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]) + "\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return add


def test_a_class_is_an_evaluator(install: Install, tmp_path: Path) -> None:
    install("acme-never", A_CLASS, never="Never")
    setup = setup_of(tmp_path / "runs")
    evaluator = make_evaluator("never", setup)
    assert isinstance(evaluator, ImmediateEvaluator)
    evaluator.start(order(setup))
    (finished,) = evaluator.finished(0)
    assert isinstance(finished.outcome, Failure)
    assert (finished.outcome.kind, finished.outcome.message) == (
        FailureKind.CRASHED,
        "no fp32 today",
    )
    assert commands_of("never", setup.command) is None


def test_a_function_makes_commands(install: Install, tmp_path: Path) -> None:
    install("acme-trainer", A_TRAINER, acme="made")
    spec = spec_of(tiny(evaluator="acme"), tmp_path)
    assert len(spec.survey().recipes) == 9
    assert spec.trainer == ("acme",)
    setup = spec.probe_setup()
    evaluator = make_evaluator("acme", setup)
    try:
        assert isinstance(evaluator, Probes)
        evaluator.start(order(setup))
        (finished,) = wait_for(lambda: evaluator.finished(0.25))
    finally:
        evaluator.close()
    assert isinstance(finished.outcome, Measurement), finished.outcome
    assert finished.outcome.step_time_s_median > 0


def test_the_documented_example_is_this_file_and_works(install: Install, tmp_path: Path) -> None:
    code = EXAMPLE.read_text()
    assert len(code.splitlines()) <= 42
    body = code.partition('"""\n\n')[2]
    assert body in PAGE.read_text(encoding="utf-8"), "docs/other-trainers.md shows another example"
    install("my-trainer", code, my_trainer="my_trainer")
    survey = spec_of(tiny(evaluator="my-trainer")).survey()
    assert survey.refusals["my-trainer-pipeline"] > 0
    assert {recipe.pipeline_parallel for recipe in survey.recipes} == {1}


@pytest.mark.parametrize("kind", EVALUATORS.values())
def test_built_in_evaluators_are_where_the_registry_says(kind: EvaluatorKind) -> None:
    module, name = kind.factory.split(":")
    assert callable(getattr(import_module(module), name))


def test_a_name_of_two_plug_ins_is_refused(install: Install) -> None:
    install("acme-one", A_CLASS, twice="Never")
    install("acme-two", A_CLASS, twice="Never")
    with pytest.raises(InvalidInput, match="acme-one and acme-two both install"):
        require_evaluator("twice")


def test_a_name_that_is_close_is_suggested(install: Install) -> None:
    install("acme-trainer", A_TRAINER, acme="made")
    with pytest.raises(InvalidInput) as caught:
        spec_of(tiny(evaluator="acne"))
    assert caught.value.hint == "did you mean 'acme'?"


@pytest.mark.parametrize(
    ("code", "what", "message"),
    [
        (
            "import no_such_module",
            "made",
            "acme_broken:made of acme-broken cannot be imported: ModuleNotFoundError",
        ),
        (A_TRAINER, "no_such_name", "cannot be imported: AttributeError"),
        ("1 / 0", "made", "cannot be imported: ZeroDivisionError"),
        (A_TRAINER, "a_number", "cannot be called"),
        (
            A_TRAINER,
            "mistaken",
            "the plug-in broken made no command for tp1 .* AttributeError: .*no_such_field",
        ),
        (A_TRAINER, "nothing", "returned no Command with arguments for tp1 .* but None"),
    ],
)
def test_plug_ins_that_cannot_be_used_are_named(
    install: Install, code: str, what: str, message: str
) -> None:
    install("acme-broken", code, broken=what)
    with pytest.raises(FrontrunnerError, match=message):
        spec_of(tiny(evaluator="broken")).survey()
