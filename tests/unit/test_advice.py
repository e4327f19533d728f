"""Advice: what fits is worked out by hand, the choice is the plainest that is fast, and its
commands lead to it.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner import planning
from frontrunner.cli.main import frontrunner as command
from frontrunner.cli.options import recipe_from as named
from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.analytic.advice import (
    OFFLOAD,
    ONE_COPY,
    PLAIN,
    TILES,
    Advice,
    ParallelLayout,
    advise,
    choose,
    one_batch,
)
from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.recipe_actions import one_recipe
from frontrunner.spaces.errors import NothingLegal
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import Space, divisors
from frontrunner.views.plan import additions, answers, commands, print_advice
from support.analytic import A100, GPT_22B, PROBLEM, recipe
from support.campaigns import tiny, write_toml

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = GPT_22B.with_keys(
    name="small",
    layers=12,
    hidden=768,
    heads=12,
    kv_heads=12,
    ffn_hidden=3072,
    attention="flash",
)


def words_of(advice: Advice) -> str:
    return "\n".join(
        f"{answer.question} {answer.answer} {' '.join(answer.sentences)}"
        for answer in answers(advice)
    )


@pytest.fixture(scope="module")
def large() -> Advice:
    """22B on 8 nodes of 8 A100."""
    return advise(Space(), PROBLEM)


def test_a_large_model_does_not_fit_on_one_device_by_its_states_alone(large: Advice) -> None:
    """18 bytes a parameter: 2 + 4 for a gradient + 8 for AdamW + 4 for the fp32 copy (arXiv
    1910.02054, section 3).
    """
    copy = large.one_copy
    assert copy is not None
    parameters = 48 * 12 * 6144**2 + 51200 * 6144
    assert copy.state_bytes == pytest.approx(18 * parameters, rel=0.01)
    assert copy.state_bytes > 4 * 80 * 2**30
    assert copy.activation_bytes_recomputed < copy.activation_bytes_whole / 10
    assert not any(form.fits for form in large.one_device)
    assert answers(large)[0].answer == "no"


def test_what_fits_is_what_fits_in_every_form(large: Advice) -> None:
    limit = A100.memory_bytes_per_device
    for form in (*large.one_device, *large.one_node, *large.whole_cluster):
        if form.estimate is not None:
            assert form.fits == (form.estimate.peak_memory_bytes <= limit)
            assert form.estimate.recipe.devices == form.devices
            alone = estimate_many([form.estimate.recipe], PROBLEM)[0]
            assert form.estimate.step_time_s == pytest.approx(alone.step_time_s)
            assert form.estimate.memory_parts_bytes == pytest.approx(alone.memory_parts_bytes)
    by_name = {form.name: form for form in large.whole_cluster}
    plain, zero = by_name[PLAIN].estimate, by_name["ZeRO-3 (FSDP)"].estimate
    assert plain is not None
    assert zero is not None
    assert not plain.fits
    assert zero.fits
    assert zero.recipe.sharding.degrees == (64, 64, 64)
    assert {form.devices for form in large.one_node} == {8}


def test_a_small_model_fits_and_is_trained_by_plain_copies() -> None:
    batch = GlobalBatch(minimum=4096, maximum=4096)
    found = advise(Space(), replace(PROBLEM, model=SMALL, global_batch=batch))
    assert answers(found)[0].answer == "yes"
    assert found.chosen is not None
    assert found.chosen.name == PLAIN
    assert "whole copy" in words_of(found)


def form(name: str, tokens_per_s: float, fit: str = "fits") -> ParallelLayout:
    base = replace(estimate_many([recipe()], PROBLEM)[0], fit=fit)
    return ParallelLayout(
        name=name,
        devices=64,
        legal=1,
        estimate=base,
        choices={},
        reason=None,
        about="",
        _tokens_per_s=tokens_per_s,
    )


def test_a_plainer_form_is_kept_unless_another_is_faster_by_more_than_a_twentieth() -> None:
    plain, sharded, three_d = (
        form("plain", 200.0, "does not fit"),
        form("sharded", 100.0),
        form("3D", 105.0),
    )

    assert choose((plain, sharded, three_d)) is sharded
    assert choose((plain, sharded, form("3D", 105.1))) is not sharded
    assert choose((plain,)) is None
    tight = form("tight", 200.0, "tight")
    assert choose((tight, sharded)) is sharded
    assert choose((tight, plain)) is tight


@pytest.mark.parametrize("name", ["frontier-22b", "frontier-175b", "laptop-accumulation"])
def test_the_commands_name_the_recipe_that_is_advised(name: str) -> None:
    file = EXAMPLES / f"{name}.toml"
    spec, found = read_campaign_file(file).spec, planning.advise(file)

    assert found.chosen is not None
    assert found.chosen.estimate is not None
    for line in list(commands(found, str(file)))[:2]:
        _, _, option, path, *words = shlex.split(line)
        assert (option, path) == ("--campaign", str(file))
        choices = named(tuple(words), file)
        assert not isinstance(choices, str)
        assert one_recipe(spec, choices) == found.chosen.estimate.recipe
    for line in additions(found):
        dimension = line.partition(" ")[0]
        assert found.lacking[dimension] not in getattr(spec.space, dimension)


def test_offload_keeps_its_shards_in_the_host_s_memory(large: Advice) -> None:
    """fp32 parameters, gradients and two states: 16 bytes for each parameter of a rank's 64th."""
    offloaded = next(form for form in large.whole_cluster if form.name == OFFLOAD).estimate
    assert offloaded is not None
    parameters = 48 * (12 * 6144**2 + 2 * 6144) + 51200 * 6144
    assert offloaded.host_memory_bytes_per_rank == pytest.approx(16 * parameters / 64, rel=0.01)


def test_tiling_is_the_advised_recipe_in_pieces() -> None:
    tiling = advise(Space(), replace(PROBLEM, model=GPT_22B.with_keys(attention="flash"))).tiling
    assert tiling is not None
    assert tiling.tiled.recipe == replace(tiling.base.recipe, **TILES)  # type: ignore[arg-type]
    assert (tiling.saved_bytes > 0, tiling.slower > 0) == (True, True)


def test_where_nothing_fits_it_says_how_much_would() -> None:
    """22B needs 18 bytes for each of 22.1e9 parameters: 370 GiB, 74 devices of 5 GiB, ten nodes."""
    found = advise(
        Space(), replace(PROBLEM, cluster=replace(A100, nodes=1, memory_gib_per_device=5))
    )
    said = words_of(found)
    assert (found.chosen, found.one_node) == (None, ())
    assert "alone fill 74 such devices, 10 nodes" in said
    assert list(commands(found, "a b.toml")) == ["frontrunner plan 'a b.toml' --nodes 2,4,8"]


def test_a_batch_that_no_replica_can_share_is_the_reason() -> None:
    crowded = replace(PROBLEM, global_batch=GlobalBatch(minimum=24, maximum=24))
    found = advise(Space(), crowded)
    plain = found.whole_cluster[0]
    assert (plain.estimate, plain.legal) == (None, 0)
    assert "micro-batch 1 x 64 replicas does not divide global batch 24" in str(plain.reason)


def test_a_narrow_terminal_shows_the_reason_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_advice(
        advise(Space(), replace(PROBLEM, global_batch=GlobalBatch(minimum=24, maximum=24)))
    )
    found = " ".join(capsys.readouterr().out.split())
    assert (
        "tiled ZeRO-3; offloaded ZeRO-3: nothing is legal: micro-batch 1 x 64 replicas does not"
        " divide" in found
    )


@pytest.mark.parametrize(
    ("batch", "devices", "chosen"),
    [((64, 64), 128, 64), ((10, 100), 64, 64), ((10, 50), 64, 50), ((70, 100), 64, 100)],
)
def test_of_a_range_of_batches_the_largest_even_one_is_taken(
    batch: tuple[int, int], devices: int, chosen: int
) -> None:
    found = one_batch(GlobalBatch(minimum=batch[0], maximum=batch[1]), devices)
    assert found == GlobalBatch(minimum=chosen, maximum=chosen)


def test_divisors() -> None:
    for number in (1, 2, 12, 49, 97, 1024, 999_999):
        assert list(divisors(number)) == [
            part for part in range(1, number + 1) if number % part == 0
        ]


def test_the_command_answers_people_and_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_toml(tmp_path / "tiny.toml", tiny()))
    command(["advise", file], standalone_mode=False)
    text = capsys.readouterr().out
    command(["advise", file, "--json"], standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)

    for given in answer["answers"]:
        assert given["question"] in text
    assert answer["answers"][0]["answer"] == "yes"
    recipe_id = answer["advice"]["chosen"]["estimate"]["recipe_id"]
    assert answer["begin_with"].startswith(recipe_id)
    assert text.rstrip().splitlines()[-1].strip().startswith("frontrunner ")
    assert all(line in text for line in answer["commands"])


def test_nothing_that_fits_has_its_own_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_toml(tmp_path / "tiny.toml", tiny(cluster={"memory_gib_per_device": 0.01}))
    with pytest.raises(NothingLegal, match="no parallel layout is estimated to fit"):
        command(["advise", str(file)], standalone_mode=False)
    assert "What then? more memory" in " ".join(capsys.readouterr().out.split())


def test_one_device_is_a_cluster_too() -> None:
    alone: Problem = replace(
        PROBLEM, model=SMALL, cluster=replace(A100, nodes=1, devices_per_node=1)
    )
    found = advise(Space(), alone)
    assert found.chosen is not None
    assert found.chosen.name == ONE_COPY
    assert len(answers(found)) == 2


def test_tiling_that_frees_nothing_is_not_advised() -> None:
    """A small model with a short vocabulary has nothing to free, and chunks cost time."""
    small = GPT_22B.with_keys(attention="flash", vocabulary=128, layers=4, hidden=256, heads=4,
                    kv_heads=4, ffn_hidden=512)  # fmt: skip
    assert advise(Space(), replace(PROBLEM, model=small)).tiling is None
