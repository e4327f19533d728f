"""The job file: strict reading, and what the engine refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.trainer.device_checks import check_job
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.layout import sharding_kind
from support.trainer_runs import small_job, small_recipe


def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(small_job(Path("/run")).to_json())
    return document


def test_a_job_survives_its_file() -> None:
    job = small_job(Path("/run"))

    assert Job.from_json(job.to_json()) == job


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ((), {"batch": 1}, r"job\.batch is not a key"),
        (("recipe", "sharding"), {"weights": 1}, r"job\.recipe\.sharding\.weights is not a key"),
        (("model",), {"layers": "4"}, r"job\.model\.layers is '4', expected int"),
        (("model",), {"layers": 4.0}, r"job\.model\.layers is 4\.0, expected int"),
        (("model",), {"layers": True}, r"job\.model\.layers is True, expected int"),
        (("model",), {"tied_embeddings": 1}, r"job\.model\.tied_embeddings is 1, expected bool"),
        (("recipe",), {"schedule": "2f2b"}, r'recipe\.schedule = "2f2b": expected one of none'),
        ((), {"recipe": None}, r"job\.recipe is None, expected an object"),
        ((), {"version": 3}, r"job\.version is 3, this trainer reads version 2"),
        ((), {"mode": "train"}, r"job\.train must not be null"),
        (("model",), {"mtp_layers": 1}, r"job\.model\.mtp_layers is 1, expected 0"),
    ],
)
def test_a_wrong_value_is_named(
    section: tuple[str, ...], change: dict[str, Any], message: str
) -> None:
    document = _document()
    place = document
    for key in section:
        place = place[key]
    place.update(change)

    with pytest.raises(ValueError, match=message):
        Job.from_json(json.dumps(document))


def test_a_missing_key_is_named() -> None:
    document = _document()
    del document["optimizer"]["momentum"]

    with pytest.raises(ValueError, match=r"job\.optimizer\.momentum is missing"):
        Job.from_json(json.dumps(document))


def test_a_job_of_before_there_were_profiles_is_read() -> None:
    document = _document()
    del document["profile"]

    assert Job.from_json(json.dumps(document)) == small_job(Path("/run"))


def test_a_whole_number_is_a_float() -> None:
    document = _document()
    document["collective_timeout_s"] = 30

    assert Job.from_json(json.dumps(document)).collective_timeout_s == 30.0


@pytest.mark.parametrize(
    ("replicas", "degrees", "kind"),
    [
        (1, (1, 1, 1), "replicate"),
        (4, (1, 1, 1), "replicate"),
        (4, (1, 1, 4), "zero-1"),
        (4, (1, 4, 4), "zero-2"),
        (4, (4, 4, 4), "zero-3"),
        (4, (2, 2, 2), "hybrid"),
        (6, (3, 3, 3), "hybrid"),
        (8, (2, 4, 8), "levels"),
        (4, (1, 2, 4), "levels"),
        (4, (2, 2, 4), "levels"),
        (4, (2, 4, 4), "levels"),
    ],
)
def test_sharding_degrees_have_names(
    replicas: int, degrees: tuple[int, int, int], kind: str
) -> None:
    assert (
        sharding_kind(small_recipe(data_parallel=replicas, sharding=degrees, micro_batch_seqs=1))
        == kind
    )


def test_blocks_of_8_bits_need_a_device_that_multiplies_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    job = replace(
        small_job(Path("/run"), recipe=small_recipe(fp8="mxfp8")), precision="bf16", device="cuda"
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    with pytest.raises(
        ValueError, match=r"compute capability 10 \(Blackwell\): NVIDIA H100 has 9.0"
    ):
        check_job(job, world_size=1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 3))
    check_job(job, world_size=1)


def test_the_number_of_ranks_must_be_the_recipes() -> None:
    job = small_job(Path("/run"), recipe=small_recipe(data_parallel=2))

    with pytest.raises(ValueError, match="needs 2 ranks, but 4 were started"):
        check_job(job, world_size=4)
