"""Whatever legality admits trains as one process does: recipes drawn at random, from all choices of
both engines.

The tables of `test_numerics` hold chosen products; here hypothesis draws from the others. Choices
that change the mathematics on purpose (bf16 states) or take long (compile) have tests of their own.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.recipe import LOOPED_SCHEDULES, Recipe
from frontrunner.spaces.space import Space, recipe_at
from support.small_space import choices_of, small_problem
from support.trainer_runs import (
    assert_trains_as_one_process,
    small_job,
    small_model,
    small_recipe,
    training_job,
)

LAYERS = 7  # no number of stages divides it
EXAMPLES = 3

PROBLEM = small_problem(layers=LAYERS)


@st.composite
def legal_recipes(draw: st.DrawFn, engine: str) -> Recipe:
    """A legal recipe on up to 8 ranks. Choices that never go together are not drawn together: few
    are refused.
    """
    ranks = draw(st.sampled_from([2, 4, 8]))
    tp = draw(st.sampled_from([degree for degree in (1, 2, 4) if degree <= ranks]))
    pp = draw(st.sampled_from([degree for degree in (1, 2, 4) if degree <= ranks // tp]))
    cp = draw(st.sampled_from([degree for degree in (1, 2, 4) if degree <= ranks // (tp * pp)]))
    cp = cp if engine == "torch" else 1
    schedules = ["1f1b"] if engine == "deepspeed" else ["gpipe", "1f1b", *LOOPED_SCHEDULES]
    shardings = ["none", "zero-1", "zero-2", "zero-3", "hybrid-2"]
    if engine == "torch" and ranks // (tp * pp) > 2:
        shardings += ["3-level-1/2", "3-level-2/2", "3-level-2/4"]
    schedule = draw(st.sampled_from(schedules)) if pp > 1 else "none"
    drawn: dict[str, Any] = {
        name: default[0] for name, default in asdict(Space()).items() if default
    }
    drawn |= {
        "engine": engine,
        "devices": ranks,
        "tensor_parallel": tp,
        "pipeline_parallel": pp,
        "context_parallel": cp,
        "schedule": schedule,
        "virtual_stages": 2 if schedule in LOOPED_SCHEDULES else 1,
        "micro_batch_seqs": draw(st.sampled_from([1, 2])),
        "sharding": draw(st.sampled_from(shardings)),
        "recompute": draw(st.sampled_from(["none", "full", "selective"])),
        "layer_split": draw(st.sampled_from(["even", "balanced"])),
    }
    if engine == "torch":
        drawn |= {
            "sequence_parallel": draw(st.booleans()),
            "loss_chunks": draw(st.sampled_from([1, 2])),
            "feed_forward_tiles": draw(st.sampled_from([1, 2])),
            "gradient_sync": draw(st.sampled_from(["last", "each"])),
            "replication": draw(st.sampled_from(["replicate", "replicate", "ddp"])),
        }
    else:
        drawn |= {
            "offload": draw(st.sampled_from(["none", "optimizer", "optimizer+parameters"])),
            "secondary_partition": draw(st.sampled_from([1, 1, 2])),
        }
    recipe = recipe_at(drawn, PROBLEM)
    assume(isinstance(recipe, Recipe) and why_illegal(recipe, PROBLEM) is None)
    assert isinstance(recipe, Recipe)
    return recipe


def train_and_compare(recipe: Recipe) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = small_job(
            Path(folder),
            recipe=small_recipe(**choices_of(recipe)),
            model=small_model(layers=LAYERS),
        )
        assert_trains_as_one_process(training_job(job))


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_recipes_that_legality_admits(engine: str) -> None:
    """A recipe that is drawn again is not run again."""
    trained: set[Recipe] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # to look for a smaller example would take minutes
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(recipe=legal_recipes(engine))
    def train(recipe: Recipe) -> None:
        if recipe not in trained:
            train_and_compare(recipe)
            trained.add(recipe)

    train()
    assert len(trained) > EXAMPLES / 2
