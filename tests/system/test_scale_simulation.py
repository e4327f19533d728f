"""Many probes on many nodes, through the real driver, store and packing: nothing is lost, and nodes
do not idle.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from frontrunner.evaluators.registry import EVALUATORS

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark as a module; the evaluator that it registers is gone afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = dict(EVALUATORS)
    spec = importlib.util.spec_from_file_location(
        "scale_simulation", BENCHMARKS / "scale_simulation.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "scale_simulation", module)
    spec.loader.exec_module(module)
    yield module
    EVALUATORS.clear()
    EVALUATORS.update(before)


def test_probes_that_crash_straggle_and_are_cut_all_end_once(
    simulation: ModuleType, tmp_path: Path
) -> None:
    settings = simulation.ClusterSettings(
        nodes=128,
        allocations=2,
        walltime_s=(1200.0, 2400.0),
        crashes=0.1,
        node_losses=0.05,
        stragglers=0.1,
    )
    found = simulation.simulated(200, settings, str(tmp_path / "scale.db"))
    assert (found.outcomes, found.lost) == (200, 0)
    assert found.measured + found.failed == 200
    assert found.attempts > 200  # what was cut or lost was tried again
    assert found.lost_nodes > 0
    assert found.cut_by_walltime > 0
    assert 0.5 < found.utilisation <= found.perfect <= 1  # a tail of few probes weighs much here
