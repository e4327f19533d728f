"""Every parallel form trains as one process does: a few steps leave what those of a plain
reference leave.

Each loss, each gradient norm, and from the trainer's checkpoint every weight and every momentum
agree to 1e-6 relative (`trainer_runs.differences`). Losses alone do not show a fault in the
gradient of a small parameter. The reference is a plain model in fp64 and torch's own SGD over the
whole global batch at once; it shares the model's definition, its first weights and the data with
the ranks, and none of the parallel code. SGD with momentum, because Adam hides a wrong scale of the
gradients.

Cases with a name say what they are about. The others are chosen: every two choices that may go
together do so in one case at least (docs/decisions/0029).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.trainer.job import Job
from frontrunner.spaces.recipe import LOOPED_SCHEDULES
from frontrunner.spaces.space import Space
from support.small_space import (
    FEW_RANKS,
    covering_experts,
    covering_recipes,
    expert_pairs_left_out,
    pairs_left_out,
    ranks_of,
)
from support.trainer_runs import (
    BALANCED,
    CLIP_NORM,
    DEEPSEEK,
    EXPERTS,
    GPT2,
    LATENT,
    NEVER_REACHED,
    QWEN,
    TOLERANCE,
    assert_trains_as_one_process,
    differences,
    reference,
    small_job,
    small_model,
    small_recipe,
    train,
    training_job,
)
from system.test_numerics_smoke import RECIPES

REPLICATED, ZERO_1, ZERO_2, ZERO_3 = (1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recipe, by its differences from a single rank, and the model's differences from the small
    one.
    """

    name: str
    recipe: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)
    clip_norm: float | None = NEVER_REACHED

    def job(self, folder: Path) -> Job:
        job = small_job(folder, recipe=small_recipe(**self.recipe), model=small_model(**self.model))
        return training_job(job, clip_norm=self.clip_norm)


def _tensor(degree: int, *, sequence: bool = False) -> dict[str, Any]:
    return {"tensor_parallel": degree, "sequence_parallel": sequence}


def _pipeline(degree: int, schedule: str, *, virtual: int = 1) -> dict[str, Any]:
    return {
        "pipeline_parallel": degree,
        "schedule": schedule,
        "virtual_stages": virtual,
        "micro_batch_seqs": 1,
    }


def _data(degree: int, sharding: tuple[int, int, int]) -> dict[str, Any]:
    return {"data_parallel": degree, "sharding": sharding, "micro_batch_seqs": 1}


def _context(degree: int, *, tensor: int = 1, sequence: bool = False) -> dict[str, Any]:
    return {"context_parallel": degree} | _tensor(tensor, sequence=sequence)


def _experts(degree: int, *, tensor: int = 1) -> dict[str, Any]:
    return {"expert_parallel": degree, "expert_tensor_parallel": tensor}


def _order(name: str) -> dict[str, Any]:
    return {"rank_order": name}


# Tensor-parallel ranks, stages and replicas together: every schedule, and every other order of the
# eight ranks.
ALL_DEGREES = (
    ("tp-pp-dp", "gpipe", ZERO_3, "selective"),
    ("dp-tp-pp", "1f1b", ZERO_2, "full"),
    ("dp-pp-tp", "interleaved-1f1b", ZERO_3, "selective"),
    ("pp-tp-dp", "looped-bfs", ZERO_1, "full"),
    ("pp-dp-tp", "interleaved-zero-bubble", ZERO_1, "none"),
    ("tp-pp-dp", "zbv", ZERO_1, "full"),
    ("dp-tp-pp", "dualpipev", REPLICATED, "full"),
)

ONE_EACH: dict[str, Any] = {"experts_per_token": 1, "renormalized_experts": False, "biases": "none"}
WITH_EXPERTS: dict[str, dict[str, Any]] = {
    "pp2-zbv": _pipeline(2, "zbv", virtual=2) | {"recompute": "full"},
    "accumulation-2-tiles": {"micro_batch_seqs": 4, "feed_forward_tiles": 2, "loss_chunks": 2},
    "ep2-tp2-sp-dp2-zero3-order": (
        _order("dp-tp-pp") | _tensor(2, sequence=True) | _data(2, ZERO_3) | _experts(2)
    ),
    "ep4-cp2-dp2-zero1": _context(2) | _data(2, (1, 1, 4)) | _experts(4),
    "ep2-etp2-tp2-sp-dp2-selective-order": (
        _tensor(2, sequence=True)
        | _data(2, REPLICATED)
        | _experts(2, tensor=2)
        | _order("dp-tp-pp")
        | {"recompute": "selective"}
    ),
    "dp2-zero3-selective": _data(2, ZERO_3) | {"recompute": "selective"},
    "ep2-dp4": _data(4, REPLICATED) | _experts(2),
    "ep4-dp4-full": _data(4, REPLICATED) | _experts(4) | {"recompute": "full"},
    "ep2-dp4-each": _data(4, REPLICATED) | _experts(2) | {"gradient_sync": "each"},
    "ep2-dp4-selective": _data(4, REPLICATED) | _experts(2) | {"recompute": "selective"},
    "ep2-dp4-zero1": _data(4, (1, 1, 4)) | _experts(2),
    "ep2-tp4-sp": _tensor(4, sequence=True) | _experts(2),
    "ep2-dp4-zero2": _data(4, (1, 4, 4)) | _experts(2),
    "ep2-dp4-zero3": _data(4, (4, 4, 4)) | _experts(2),
    "ep4-dp4-zero3-full": _data(4, (4, 4, 4)) | _experts(4) | {"recompute": "full"},
    "ep2-tp2-sp": _tensor(2, sequence=True) | _experts(2),
    "ep4-tp2-sp-dp2-order": (
        _tensor(2, sequence=True) | _data(2, REPLICATED) | _experts(4) | _order("dp-tp-pp")
    ),
    "ep2-pp2-1f1b-dp2-zero2": _pipeline(2, "1f1b") | _data(2, ZERO_2) | _experts(2),
    "ep2-pp2-izb-dp2": (
        _pipeline(2, "interleaved-zero-bubble", virtual=2) | _data(2, REPLICATED) | _experts(2)
    ),
    "ep2-dp4-zero1-selective": _data(4, (1, 1, 4)) | _experts(2) | {"recompute": "selective"},
    "ep2-pp2-1f1b-dp2-zero1-selective": (
        _pipeline(2, "1f1b") | _data(2, ZERO_1) | _experts(2) | {"recompute": "selective"}
    ),
    "ep2-etp2-dp8-zero3-selective": (
        _data(8, (8, 8, 8)) | _experts(2, tensor=2) | {"recompute": "selective"}
    ),
    "ep4-tp2-sp-dp2-zero2-selective": (
        _tensor(2, sequence=True) | _data(2, ZERO_2) | _experts(4) | {"recompute": "selective"}
    ),
    "etp2-dp4": _data(4, REPLICATED) | _experts(1, tensor=2),
    "etp2-tp2-sp": _tensor(2, sequence=True) | _experts(1, tensor=2) | {"recompute": "full"},
    "etp4-tp2-sp-dp2-zero1": _tensor(2, sequence=True) | _data(2, ZERO_1) | _experts(1, tensor=4),
    "ep2-etp2-dp4-zero2": _data(4, (1, 4, 4)) | _experts(2, tensor=2),
    "ep2-etp2-dp8-zero3": _data(8, (8, 8, 8)) | _experts(2, tensor=2),
    "ep2-etp2-tp2-sp-pp2-interleaved-dp2-zero1": (
        _tensor(2, sequence=True)
        | _pipeline(2, "interleaved-1f1b", virtual=2)
        | _data(2, ZERO_1)
        | _experts(2, tensor=2)
    ),
    "ep4-tp2-sp-pp2-interleaved-dp2-zero1": (
        _tensor(2, sequence=True)
        | _pipeline(2, "interleaved-1f1b", virtual=2)
        | _data(2, ZERO_1)
        | _experts(4)
    ),
}

LATENT_MATH: dict[str, Any] = LATENT | {"query_rank": None, "attention": "math"}
OF_DEEPSEEK: dict[str, dict[str, Any]] = {
    "accumulation-4-tiles": {"micro_batch_seqs": 2, "feed_forward_tiles": 2, "loss_chunks": 2},
    "ep2-cp2-dp2-zero1-full": (
        _context(2) | _data(2, (1, 1, 4)) | _experts(2) | {"recompute": "full"}
    ),
    "ep4-tp2-sp-dp2-zero3": _tensor(2, sequence=True) | _data(2, ZERO_3) | _experts(4),
    "ep2-pp4-1f1b-dp2-zero3": _pipeline(4, "1f1b") | _data(2, ZERO_3) | _experts(2),
    "pp2-zbv-full": _pipeline(2, "zbv", virtual=2) | {"recompute": "full"},
    "dp2-zero3-full": _data(2, ZERO_3) | {"recompute": "full"},
    "dp2-zero3-selective": _data(2, ZERO_3) | {"recompute": "selective"},
    "dp4-hybrid": _data(4, (2, 2, 2)),
    "ep2-pp2-izb-dp2": (
        _pipeline(2, "interleaved-zero-bubble", virtual=2) | _data(2, REPLICATED) | _experts(2)
    ),
}
BALANCED_BY_A_LOSS: dict[str, dict[str, Any]] = {
    "ep4-tp2-sp-cp2-full": (
        _context(2, tensor=2, sequence=True) | _experts(4) | {"recompute": "full"}
    ),
    "ep2-pp2-interleaved-dp2-zero2": (
        _pipeline(2, "interleaved-1f1b", virtual=2) | _data(2, ZERO_2) | _experts(2)
    ),
    "pp2-zbv-full": _pipeline(2, "zbv", virtual=2) | {"recompute": "full"},
    "accumulation-4": {"micro_batch_seqs": 2},
    "ep2-tp2-sp-dp2-zero1": _tensor(2, sequence=True) | _data(2, ZERO_1) | _experts(2),
    "ep4-cp4-selective": _context(4) | _experts(4) | {"recompute": "selective"},
}

CASES = [
    Case(name="tp4-sp-qwen-replicates-2-kv-heads", recipe=_tensor(4, sequence=True), model=QWEN),
    Case(
        name="dp4-levels-244-learned-tied",
        recipe=_data(4, (2, 4, 4)),
        model=GPT2 | {"tied_embeddings": True},
    ),
    # 60 rows are cut into 30, 15 and 8 or 7; 100 into 50, 25 and 13 or 12; 386 into 193, 97 or 96,
    # and 49, 48 or 47.
    Case(
        name="dp8-levels-248-uneven",
        recipe=_data(8, (2, 4, 8)),
        model=GPT2 | {"hidden": 60, "ffn_hidden": 100, "vocabulary": 386},
        clip_norm=CLIP_NORM,
    ),
    Case(
        name="pp4-1f1b-layers-2-1-2-1",
        recipe=_pipeline(4, "1f1b") | {"layers_per_stage": (2, 1, 2, 1)},
        model={"layers": 6},
        clip_norm=CLIP_NORM,
    ),
    Case(
        name="pp2-zbv-layers-1-3-2-1",
        recipe=_pipeline(2, "zbv", virtual=2) | {"layers_per_stage": (1, 3, 2, 1)},
        model={"layers": 7},
    ),
    Case(
        name="pp4-interleaved",
        recipe=_pipeline(4, "interleaved-1f1b", virtual=2),
        model={"layers": 8},
    ),
    Case(
        name="latent-attention-tp2-sp-cp2-math",
        recipe=_context(2, tensor=2, sequence=True),
        model=LATENT_MATH,
    ),
    Case(
        name="experts-ep2-gelu-one-each",
        recipe=_data(2, ZERO_2) | _experts(2),
        model=GPT2 | EXPERTS | ONE_EACH,
    ),
    Case(
        name="tp4-sp-cp2-replicates-and-sends-2-kv-heads",
        recipe=_context(2, tensor=4, sequence=True),
        model={"heads": 8, "kv_heads": 2},
    ),
    Case(
        name="order-dp-tp-tp2-sp-dp2-zero3",
        recipe=_tensor(2, sequence=True) | _data(2, ZERO_3) | _order("dp-tp-pp"),
    ),
    Case(
        name="order-pp-dp-pp2-1f1b-dp2-zero1",
        recipe=_pipeline(2, "1f1b") | _data(2, ZERO_1) | _order("tp-pp-dp"),
    ),
    Case(
        name="tp2-sp-dp4-levels-224-replicates-1-kv-head",
        recipe=_tensor(2, sequence=True) | _data(4, (2, 2, 4)),
        model={"kv_heads": 1},
        clip_norm=CLIP_NORM,
    ),
]
MORE_CASES = [
    Case(
        name="tp2-sp-pp2-zbv-learned",
        recipe=_tensor(2, sequence=True) | _pipeline(2, "zbv", virtual=2) | {"recompute": "full"},
        model=GPT2,
    ),
    Case(
        name="tp4-replicates-2-kv-heads",
        recipe=_tensor(4),
        model={"kv_heads": 2},
        clip_norm=CLIP_NORM,
    ),
    Case(
        name="tp2-learned-tied",
        recipe=_tensor(2, sequence=True),
        model=GPT2 | {"tied_embeddings": True},
    ),
    Case(name="tp4-learned", recipe=_tensor(4), model=GPT2),
    Case(
        name="tp2-dp2-zero3-qwen",
        recipe=_tensor(2) | _data(2, ZERO_3) | {"recompute": "selective"},
        model=QWEN,
    ),
    Case(
        name="tp2-sp-cp2-levels-qwen",
        recipe=_context(2, tensor=2, sequence=True) | _data(2, (1, 2, 4)),
        model=QWEN,
    ),
    Case(
        name="dp2-zero3-learned-tied",
        recipe=_data(2, ZERO_3),
        model=GPT2 | {"tied_embeddings": True},
    ),
    Case(name="pp2-1f1b-learned", recipe=_pipeline(2, "1f1b"), model=GPT2),
    Case(
        name="pp4-1f1b-uneven",
        recipe=_pipeline(4, "1f1b"),
        model={"layers": 6},
        clip_norm=CLIP_NORM,
    ),
    Case(
        name="tp2-sp-dp2-zero3-replicates-1-kv-head",
        recipe=_tensor(2, sequence=True) | _data(2, ZERO_3),
        model={"kv_heads": 1},
        clip_norm=CLIP_NORM,
    ),
    Case(
        name="math-attention-grouped-heads",
        recipe=_tensor(2),
        model={"attention": "math", "kv_heads": 2},
    ),
    *(
        Case(name=f"experts-{name}", recipe=recipe, model=EXPERTS)
        for name, recipe in WITH_EXPERTS.items()
    ),
    *(
        Case(name=f"deepseek-{name}", recipe=recipe, model=DEEPSEEK)
        for name, recipe in OF_DEEPSEEK.items()
    ),
    *(
        Case(name=f"balanced-{name}", recipe=recipe, model=BALANCED)
        for name, recipe in BALANCED_BY_A_LOSS.items()
    ),
    Case(name="latent-attention-tp4", recipe=_tensor(4), model=LATENT),
    Case(name="latent-attention-pp2-zbv", recipe=_pipeline(2, "zbv", virtual=2), model=LATENT),
    Case(
        name="experts-ep2-tp2-sp-uniform",
        recipe=_tensor(2, sequence=True) | _experts(2),
        model=EXPERTS | {"routing": "uniform"},
    ),
    Case(name="cp4-learned-tied", recipe=_context(4), model=GPT2 | {"tied_embeddings": True}),
    Case(name="cp4-sends-2-kv-heads-twice", recipe=_context(4), model={"kv_heads": 2}),
    Case(
        name="cp2-2-kv-heads-math", recipe=_context(2), model={"kv_heads": 2, "attention": "math"}
    ),
    Case(name="tp2-cp2-learned", recipe=_context(2, tensor=2), model=GPT2),
    Case(
        name="tp2-sp-cp2-selective-sends-kv-heads-twice",
        recipe=_context(2, tensor=2, sequence=True) | {"recompute": "selective"},
        model={"kv_heads": 2},
        clip_norm=CLIP_NORM,
    ),
    Case(
        name="cp2-pp2-1f1b-learned-full",
        recipe=_context(2) | _pipeline(2, "1f1b") | {"recompute": "full"},
        model=GPT2,
        clip_norm=CLIP_NORM,
    ),
    Case(name="accumulation-4", recipe={"micro_batch_seqs": 2}),
    Case(name="tp2", recipe=_tensor(2)),
    Case(name="tp2-sp-accumulation-2", recipe=_tensor(2, sequence=True) | {"micro_batch_seqs": 4}),
    Case(name="tp4", recipe=_tensor(4)),
    Case(name="tp4-sp", recipe=_tensor(4, sequence=True)),
    Case(name="dp2", recipe=_data(2, REPLICATED)),
    Case(name="dp2-ddp", recipe=_data(2, REPLICATED) | {"replication": "ddp"}, clip_norm=CLIP_NORM),
    Case(name="dp2-zero1", recipe=_data(2, ZERO_1)),
    Case(name="dp2-zero2", recipe=_data(2, ZERO_2)),
    Case(name="dp2-zero3", recipe=_data(2, ZERO_3), clip_norm=CLIP_NORM),
    Case(name="dp4-hybrid", recipe=_data(4, ZERO_3), clip_norm=CLIP_NORM),
    Case(name="dp4-levels-124", recipe=_data(4, (1, 2, 4))),
    Case(
        name="dp4-levels-224-full",
        recipe=_data(4, (2, 2, 4)) | {"recompute": "full"},
        clip_norm=CLIP_NORM,
    ),
    Case(
        name="dp8-levels-248", recipe=_data(8, (2, 4, 8)) | {"accumulation": 2}, clip_norm=CLIP_NORM
    ),
    Case(name="pp2-gpipe", recipe=_pipeline(2, "gpipe")),
    Case(name="pp4-gpipe", recipe=_pipeline(4, "gpipe")),
    Case(name="pp2-interleaved", recipe=_pipeline(2, "interleaved-1f1b", virtual=2)),
    Case(name="pp2-looped-bfs", recipe=_pipeline(2, "looped-bfs", virtual=2)),
    Case(
        name="pp2-interleaved-zero-bubble",
        recipe=_pipeline(2, "interleaved-zero-bubble", virtual=2),
    ),
    Case(name="pp2-zbv-dp2-zero1", recipe=_pipeline(2, "zbv", virtual=2) | _data(2, ZERO_1)),
    Case(
        name="pp2-dualpipev-dp2", recipe=_pipeline(2, "dualpipev", virtual=2) | _data(2, REPLICATED)
    ),
    Case(name="tp2-dp2", recipe=_tensor(2) | _data(2, REPLICATED)),
    Case(name="tp2-sp-dp2-zero1", recipe=_tensor(2, sequence=True) | _data(2, ZERO_1)),
    Case(name="tp2-dp2-zero2", recipe=_tensor(2) | _data(2, ZERO_2)),
    Case(name="pp2-1f1b-dp2", recipe=_pipeline(2, "1f1b") | _data(2, REPLICATED)),
    Case(name="pp2-1f1b-dp2-zero1", recipe=_pipeline(2, "1f1b") | _data(2, ZERO_1)),
    Case(
        name="pp2-1f1b-dp2-zero2",
        recipe=_pipeline(2, "1f1b") | _data(2, ZERO_2),
        clip_norm=CLIP_NORM,
    ),
    Case(
        name="pp2-interleaved-dp2-zero2",
        recipe=_pipeline(2, "interleaved-1f1b", virtual=2) | _data(2, ZERO_2),
    ),
    Case(name="pp2-gpipe-dp2-zero3", recipe=_pipeline(2, "gpipe") | _data(2, ZERO_3)),
    Case(
        name="pp2-interleaved-dp2-zero3",
        recipe=_pipeline(2, "interleaved-1f1b", virtual=2) | _data(2, ZERO_3),
    ),
    Case(name="tp2-pp2-1f1b", recipe=_tensor(2) | _pipeline(2, "1f1b")),
    Case(
        name="tp2-sp-pp2-interleaved",
        recipe=_tensor(2, sequence=True) | _pipeline(2, "interleaved-1f1b", virtual=2),
    ),
    Case(
        name="order-dp-tp-pp-levels-224-tp2",
        recipe=_tensor(2) | _data(4, (2, 2, 4)) | _order("dp-tp-pp"),
        clip_norm=CLIP_NORM,
    ),
    Case(
        name="order-tp-pp-dp-cp2-tp2-pp2",
        recipe=_context(2, tensor=2)
        | _pipeline(2, "1f1b")
        | {"sharding": ZERO_2}
        | _order("tp-pp-dp"),
    ),
    Case(
        name="recompute-full-pp2-dp2-zero3",
        recipe=_pipeline(2, "1f1b") | _data(2, ZERO_3) | {"recompute": "full"},
    ),
    Case(name="recompute-full-zbv", recipe=_pipeline(2, "zbv", virtual=2) | {"recompute": "full"}),
    Case(
        name="recompute-selective-tp2-sp",
        recipe=_tensor(2, sequence=True) | {"recompute": "selective"},
    ),
    Case(
        name="recompute-selective-dp2-zero3", recipe=_data(2, ZERO_3) | {"recompute": "selective"}
    ),
    Case(
        name="tp2-sp-pp2-dp2-zero3",
        recipe=_tensor(2, sequence=True) | _pipeline(2, "1f1b") | _data(2, ZERO_3),
        clip_norm=CLIP_NORM,
    ),
    *(
        Case(
            name=(
                f"order-{order}-tp2-sp-pp2-{schedule}-dp2-{''.join(map(str, sharding))}-{recompute}"
            ),
            recipe=_tensor(2, sequence=True)
            | _pipeline(2, schedule, virtual=1 if schedule in ("gpipe", "1f1b") else 2)
            | _data(2, sharding)
            | {"recompute": recompute}
            | _order(order),
            clip_norm=CLIP_NORM,
        )
        for order, schedule, sharding, recompute in ALL_DEGREES
    ),
    Case(name="cp2", recipe=_context(2) | {"micro_batch_seqs": 2}, clip_norm=CLIP_NORM),
    Case(name="cp2-dp2-zero3", recipe=_context(2) | _data(2, (4, 4, 4)), clip_norm=CLIP_NORM),
    Case(name="cp2-dp2-hybrid", recipe=_context(2) | _data(2, ZERO_3), clip_norm=CLIP_NORM),
    Case(name="cp2-dp4-levels-248", recipe=_context(2) | _data(4, (2, 4, 8)), clip_norm=CLIP_NORM),
    Case(
        name="tp2-cp2-dp2-levels-124",
        recipe=_context(2, tensor=2) | _data(2, (1, 2, 4)),
        clip_norm=CLIP_NORM,
    ),
    *(
        Case(
            name=f"tp2-sp-cp2-pp2-{schedule}-{recompute}",
            recipe=_context(2, tensor=2, sequence=True)
            | _pipeline(2, schedule, virtual=2)
            | {"recompute": recompute},
            clip_norm=CLIP_NORM,
        )
        for schedule, recompute in (("interleaved-1f1b", "selective"), ("zbv", "full"))
    ),
]
"""Run by `make nightly`: of each pair of their choices another case holds both."""


SPACE = Space(
    devices=(1, 2, 4, 8),
    tensor_parallel=(1, 2),
    pipeline_parallel=(1, 2),
    context_parallel=(1, 2),
    virtual_stages=(1, 2),
    schedule=("gpipe", "1f1b", *LOOPED_SCHEDULES),
    sharding=("none", "zero-1", "zero-2", "zero-3", "hybrid-2", "3-level-1/2", "3-level-2/2"),
    recompute=("none", "full", "selective"),
    sequence_parallel=(False, True),
    replication=("replicate", "ddp"),
    gradient_sync=("last", "each"),
)
EXPERTS_SPACE = SPACE.with_choices(
    devices=(4, 8),
    context_parallel=(1,),
    sharding=("none", "zero-1", "zero-2", "zero-3"),
    recompute=("none", "full"),
    replication=("replicate",),
    expert_parallel=(1, 2),
    expert_tensor_parallel=(1, 2),
)
QUICK = [(small_recipe(**recipe), model) for recipe, model in RECIPES.values()]
"""The recipes of the quick tests, and their models."""
NAMED = [
    *(recipe for recipe, model in QUICK if "experts" not in model),
    *(small_recipe(**case.recipe) for case in CASES),
]
CHOSEN = covering_recipes(SPACE, run_anyway=NAMED)
BY_NIGHT = [name for name, recipe in CHOSEN.items() if ranks_of(recipe) > FEW_RANKS][4:]
"""Of the chosen recipes on many ranks all but the first, which hold most pairs."""
NAMED_EXPERTS = [recipe for recipe, model in QUICK if "experts" in model]
CHOSEN_EXPERTS = covering_experts(EXPERTS_SPACE, EXPERTS, run_anyway=NAMED_EXPERTS)


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=case.name) for case in CASES),
        *(pytest.param(case, id=case.name, marks=pytest.mark.nightly) for case in MORE_CASES),
    ],
)
def test_trains_as_one_process(case: Case, tmp_path: Path) -> None:
    assert_trains_as_one_process(case.job(tmp_path / "run"))


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, id=name, marks=pytest.mark.nightly if name in BY_NIGHT else ())
        for name, recipe in CHOSEN.items()
    ],
)
def test_each_two_choices_together_train_the_right_model(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    assert_trains_as_one_process(
        Case(name="chosen", recipe=recipe, clip_norm=CLIP_NORM).job(tmp_path / "run")
    )


@pytest.mark.parametrize("recipe", CHOSEN_EXPERTS.values(), ids=CHOSEN_EXPERTS)
def test_each_choice_together_with_shared_experts_trains_the_right_model(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    case = Case(name="chosen", recipe=recipe, model=EXPERTS, clip_norm=CLIP_NORM)
    assert_trains_as_one_process(case.job(tmp_path / "run"))


def test_each_two_legal_choices_meet_in_a_case() -> None:
    run = [*NAMED, *(small_recipe(**recipe) for recipe in CHOSEN.values())]

    assert pairs_left_out(SPACE, run) == set()
    shared = [*NAMED_EXPERTS, *(small_recipe(**recipe) for recipe in CHOSEN_EXPERTS.values())]
    assert expert_pairs_left_out(EXPERTS_SPACE, EXPERTS, shared) == set()


@pytest.mark.parametrize("clip_norm", [None, NEVER_REACHED, CLIP_NORM])
def test_a_small_fault_of_the_rate_would_be_seen(tmp_path: Path, clip_norm: float | None) -> None:
    """A ten-thousandth, in weights and in momentum, and where nothing clips in the losses too."""
    job = Case(name="single", recipe={}, clip_norm=clip_norm).job(tmp_path / "run")
    trained = train(job)

    right, wrong = reference(job), reference(job, learning_rate_scale=1.0001)

    assert (trained.gradient_norms[0] is None) == (clip_norm is None)
    assert max(differences(trained, right).values()) < TOLERANCE
    seen = {
        kind.split()[0] for kind, size in differences(trained, wrong).items() if size > TOLERANCE
    }
    assert {"weights", "momentum"} <= seen
