"""Every form of the DeepSpeed engine trains as one process does: see test_numerics.

Weights and momentum are those that DeepSpeed's own functions collect from its ranks. Without ZeRO
it clips and reports no gradient norm, which then goes uncompared.

What legality refuses because the numbers would be wrong is run here too, past the refusal, to show
that they are: a version of DeepSpeed that has mended one of them fails its test.
"""

import importlib.util
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.trainer.job import Job
from frontrunner.spaces.space import Space
from support.small_space import covering_recipes, pairs_left_out
from support.trainer_runs import (
    CLIP_NORM,
    GPT2,
    QWEN,
    assert_trains_as_one_process,
    differences,
    read_progress,
    reference,
    reference_losses,
    run_job,
    small_job,
    small_model,
    small_recipe,
    train,
    training_job,
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is an extra"
)

TOLERANCE = 1e-5
ENGINE = {"engine": "deepspeed"}
WHOLE, ZERO_1, ZERO_2, ZERO_3 = (1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2)
TENSOR = {"tensor_parallel": 2}
PIPELINE = {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batch_seqs": 1}
SECONDARY = {
    "data_parallel": 4,
    "sharding": (4, 4, 4),
    "secondary_partition": 2,
    "micro_batch_seqs": 1,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recipe, by its differences from a single rank, and the model's differences from the small
    one.
    """

    name: str
    recipe: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)
    clip_norm: float | None = CLIP_NORM

    def probe(self, folder: Path) -> Job:
        recipe = small_recipe(**(ENGINE | self.recipe))
        job = small_job(folder, recipe=recipe, model=small_model(**self.model))
        return replace(job, optimizer=replace(job.optimizer, gradient_clip_norm=self.clip_norm))

    def training(self, folder: Path) -> Job:
        return training_job(self.probe(folder), clip_norm=self.clip_norm)


def _data(sharding: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    return {"data_parallel": 2, "sharding": sharding, "micro_batch_seqs": 1} | more


CASES = [
    Case(name="dp2-unclipped", recipe=_data(WHOLE), clip_norm=None),
    Case(
        name="dp2-zero3-learned-tied", recipe=_data(ZERO_3), model=GPT2 | {"tied_embeddings": True}
    ),
    Case(name="dp2-zero1-offload", recipe=_data(ZERO_1, offload="optimizer")),
    Case(name="dp2-zero3-offload-all", recipe=_data(ZERO_3, offload="optimizer+parameters")),
    Case(name="dp4-zero3-secondary-2", recipe=SECONDARY),
    Case(name="tp2-unclipped", recipe=TENSOR, clip_norm=None),
    Case(name="tp2-dp2-zero3-grouped-heads", recipe=TENSOR | _data(ZERO_3), model={"kv_heads": 2}),
    Case(name="tp2-dp2-zero1-learned", recipe=TENSOR | _data(ZERO_1), model=GPT2),
    Case(name="dp2-zero3-qwen", recipe=_data(ZERO_3), model=QWEN),
    Case(name="pp2-unclipped", recipe=PIPELINE, clip_norm=None),
    Case(name="pp2-dp2-zero1-offload", recipe=PIPELINE | _data(ZERO_1, offload="optimizer")),
    Case(
        name="pp4-layers-2-1-2-1",
        recipe=PIPELINE | {"pipeline_parallel": 4, "layers_per_stage": (2, 1, 2, 1)},
        model={"layers": 6},
    ),
    Case(name="tp2-pp2-dp2-zero1", recipe=TENSOR | PIPELINE | _data(ZERO_1), model=GPT2),
]
MORE_CASES = [
    Case(name="accumulation-4", recipe={"micro_batch_seqs": 2}),
    Case(name="dp2", recipe=_data(WHOLE)),
    Case(name="dp2-zero1", recipe=_data(ZERO_1)),
    Case(
        name="dp2-zero2-learned-tied", recipe=_data(ZERO_2), model=GPT2 | {"tied_embeddings": True}
    ),
    Case(name="dp2-zero3", recipe=_data(ZERO_3)),
    Case(name="dp2-zero3-recompute-full", recipe=_data(ZERO_3, recompute="full")),
    Case(name="dp2-zero3-recompute-selective", recipe=_data(ZERO_3, recompute="selective")),
    Case(
        name="one-rank-offload-all",
        recipe={"offload": "optimizer+parameters", "micro_batch_seqs": 4},
    ),
    Case(name="tp2-dp2-zero1", recipe=TENSOR | _data(ZERO_1)),
    Case(name="pp2", recipe=PIPELINE),
    Case(
        name="pp4-uneven-learned",
        recipe=PIPELINE | {"pipeline_parallel": 4},
        model=GPT2 | {"layers": 6},
    ),
    Case(
        name="pp4-two-micro-batches",
        recipe=PIPELINE | {"pipeline_parallel": 4, "micro_batch_seqs": 4},
    ),
    Case(name="tp2-pp2-selective", recipe=TENSOR | PIPELINE | {"recompute": "selective"}),
    Case(name="tp2-pp2-dp2", recipe=TENSOR | PIPELINE | _data(WHOLE)),
]
"""Run by `make nightly`: of each pair of their choices another case holds both."""


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=case.name) for case in CASES),
        *(pytest.param(case, id=case.name, marks=pytest.mark.nightly) for case in MORE_CASES),
    ],
)
def test_trains_as_one_process(case: Case, tmp_path: Path) -> None:
    assert_trains_as_one_process(case.training(tmp_path / "run"))


SPACE = Space(
    engine=("deepspeed",),
    devices=(1, 2, 4, 8),
    tensor_parallel=(1, 2),
    pipeline_parallel=(1, 2),
    micro_batch_seqs=(1, 2),
    schedule=("1f1b",),
    sharding=("none", "zero-1", "zero-2", "zero-3"),
    recompute=("none", "selective", "full"),
    offload=("none", "optimizer", "optimizer+parameters"),
    secondary_partition=(1, 2),
)
NAMED = [small_recipe(**(ENGINE | case.recipe)) for case in CASES]
CHOSEN = covering_recipes(SPACE, run_anyway=NAMED)


@pytest.mark.parametrize("recipe", CHOSEN.values(), ids=CHOSEN)
def test_each_two_choices_together_train_the_right_model(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    assert_trains_as_one_process(Case(name="chosen", recipe=recipe).training(tmp_path / "run"))


def test_each_two_legal_choices_meet_in_a_case() -> None:
    run = [*NAMED, *(small_recipe(**recipe) for recipe in CHOSEN.values())]

    assert pairs_left_out(SPACE, run) == set()


WRONG = [
    Case(name="autotp-selective", recipe=TENSOR | {"recompute": "selective"}),
    Case(name="tp2-secondary-2", recipe=TENSOR | SECONDARY),
]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(WRONG[0], id=WRONG[0].name),
        pytest.param(WRONG[1], id=WRONG[1].name, marks=pytest.mark.nightly),
    ],
)
def test_what_is_refused_as_wrong_is_wrong(case: Case, tmp_path: Path) -> None:
    job = case.training(tmp_path / "run")

    assert max(differences(train(job), reference(job)).values()) > 10 * TOLERANCE


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param({}, id="one-rank", marks=pytest.mark.nightly),
        pytest.param(_data(ZERO_1), id="dp2-zero1"),
        pytest.param(_data(ZERO_3), id="dp2-zero3", marks=pytest.mark.nightly),
        pytest.param(PIPELINE, id="pp2"),
    ],
)
def test_bf16_follows_fp32(recipe: dict[str, Any], tmp_path: Path) -> None:
    job = replace(Case(name="bf16", recipe=recipe).probe(tmp_path / "run"), precision="bf16")

    losses = run_job(job)["losses"]

    reference = reference_losses(job)
    assert losses == pytest.approx(reference, abs=0.02)
    assert losses != pytest.approx(reference, abs=TOLERANCE)


def test_the_gradient_norm_is_that_of_the_torch_engine(tmp_path: Path) -> None:
    """Before clipping, over the whole model, however it is spread."""
    forms = {"torch": {"engine": "torch"}, "deepspeed": TENSOR | PIPELINE | _data(ZERO_1)}
    norms = {}
    for name, recipe in forms.items():
        job = Case(name=name, recipe=recipe).probe(tmp_path / name)
        run_job(job)
        norms[name] = [
            event["gradient_norm"] for event in read_progress(job) if event["event"] == "step"
        ]

    assert norms["deepspeed"] == pytest.approx(norms["torch"], rel=1e-4)


def test_gradients_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    """DeepSpeed skips such a step and goes on with the old weights, whose loss is as finite as
    before.
    """
    job = Case(name="diverging", recipe=_data(ZERO_2), clip_norm=None).probe(tmp_path / "run")
    job = replace(job, optimizer=replace(job.optimizer, learning_rate=1e30))

    result = run_job(job)

    assert result["status"] == "not-finite"
    assert len(result["losses"]) == 2
