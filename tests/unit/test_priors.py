"""Priors of the formulas' constants, and what step times feel of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from frontrunner.evaluators.analytic import priors
from frontrunner.evaluators.analytic.codes import FRONTRUNNER, MEGATRON_GPT
from frontrunner.evaluators.analytic.estimates import blocks
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.priors import DEVIATIONS, deviations_of, moved, place, slopes
from support.analytic import A100, PROBLEM, recipe


def test_moved_constant_keeps_its_scale_and_a_share_stays_one() -> None:
    assert moved("memory", 0.8, -0.5) == pytest.approx(0.8 * math.exp(-0.5))
    assert moved("gradient_overlap", 0.5, math.log(3)) == pytest.approx(0.75)
    assert 0 < moved("gradient_overlap", 1.0, -1.0) < 1
    assert place("gradient_overlap", moved("gradient_overlap", 0.3, 0.7)) - place(
        "gradient_overlap", 0.3
    ) == (pytest.approx(0.7))


def test_deviations_of_a_cluster_grow_with_what_is_not_known_of_it() -> None:
    known = deviations_of(A100, (), is_validated=True)
    fitted = replace(A100, efficiencies={"memory": 0.8})
    assert known == DEVIATIONS
    assert deviations_of(A100, (), is_validated=False)["memory"] > known["memory"]
    assert deviations_of(A100, ("memory_gb_per_s",), is_validated=True)["memory"] > 0.5
    assert deviations_of(fitted, (), is_validated=True)["memory"] < known["memory"]
    reaches = replace(A100, efficiencies={"network_links": 0.3})
    unseen, measured = (
        deviations_of(cluster, (), is_validated=False)["network_links"]
        for cluster in (A100, reaches)
    )
    assert unseen > known["network_links"]
    assert measured < known["network_links"]
    assert set(known) == set(Machine.of(A100, "bf16", FRONTRUNNER).constants())


def test_constants_of_a_machine_are_those_of_its_code() -> None:
    own = MEGATRON_GPT.changed(host_layer_s=3e-3)
    assert Machine.of(A100, "fp16", own).constants()["host_layer_s"] == 3e-3


@pytest.mark.parametrize("numbers_at_once", [1, 100, 10**6])
def test_slopes_of_constants_moved_together_are_those_of_each_alone(
    numbers_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any number at once; one of them has its own deviation for each recipe."""
    recipes = [
        recipe(),
        recipe(tensor_parallel=1, pipeline_parallel=8, accumulation=8, micro_batch_seqs=1),
        recipe(micro_batch_seqs=1, recompute="full"),
    ]
    ((_, machine, work),) = blocks(recipes, PROBLEM)
    unknown = [{name: by} for name, by in DEVIATIONS.items()]
    unknown += [{"network_links": np.array([0.1, 0.2, 0.3]), "memory": 0.1}]
    alone = [slopes(A100, "bf16", machine.code, work, [one])[:, 0] for one in unknown]

    monkeypatch.setattr(priors, "NUMBERS_AT_ONCE", numbers_at_once)
    together = slopes(A100, "bf16", machine.code, work, unknown)

    np.testing.assert_allclose(together, np.stack(alone, axis=1), rtol=1e-9, atol=1e-12)
    assert np.count_nonzero(together.any(axis=0)) > 10, "most are felt"
