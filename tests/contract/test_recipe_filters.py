"""Recipes filtered by each of their choices."""

from __future__ import annotations

from frontrunner.results.pages import recipe_page
from frontrunner.results.ranking import FILTERS
from frontrunner.results.records import Campaign
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.server.requests import RecipeQuestion
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from support.store_contract import StoreContract, measurement


def recipe(**changes: object) -> Recipe:
    fields = {
        "devices": 8,
        "tensor_parallel": 2,
        "micro_batch_seqs": 2,
        "accumulation": 4,
        **changes,
    }
    return Recipe(**fields)  # type: ignore[arg-type]


RECIPES = (
    recipe(),
    recipe(tensor_parallel=8),
    recipe(sharding=Sharding(optimizer=4), compile=True, rank_order="tp-pp-dp"),
    recipe(sharding=Sharding(gradients=4, optimizer=4), offload="optimizer", engine="deepspeed"),
    recipe(
        sharding=Sharding(parameters=4, gradients=4, optimizer=4), recompute="full", loss_chunks=4
    ),
    recipe(
        sharding=Sharding(parameters=2, gradients=2, optimizer=2),
        sequence_parallel=True,
        gradient_sync="each",
    ),
    recipe(
        sharding=Sharding(parameters=2, gradients=4, optimizer=4),
        replication="ddp",
        secondary_partition=2,
    ),
    recipe(
        context_parallel=2,
        sharding=Sharding(optimizer=4),
        activation_offload=True,
        feed_forward_tiles=2,
    ),
    recipe(
        pipeline_parallel=2, schedule="1f1b", optimizer_state="bf16", sharding=Sharding(optimizer=2)
    ),
    recipe(tensor_parallel=4, sequence_parallel=True, compile=True, async_tensor_parallel=True),
    recipe(
        pipeline_parallel=4,
        schedule="interleaved-1f1b",
        virtual_stages=2,
        devices=16,
        micro_batch_seqs=1,
    ),
)
NAMES = ("none", "zero-1", "zero-2", "zero-3", "hybrid-2", "hybrid-3", "3-level-2/4")


class TestFilters(StoreContract):
    def test_each_filter_leaves_the_recipes_that_have_its_value(
        self, store: Store, campaign: Campaign, writer: CampaignWriter
    ) -> None:
        writer.set_state(CampaignState.RUNNING, reason="")
        for number, one in enumerate(RECIPES):
            attempt = writer.start_attempt(
                writer.propose(f"{number:012x}", one), run_folder="/runs"
            )
            writer.finish_attempt(attempt, measurement(1.0 + number), retry=False)

        def found(name: str, value: int | str) -> list[Recipe]:
            page = recipe_page(store, campaign.name, filters={name: value})
            assert page.total == len(page.items)
            return [item.recipe for item in page.items]

        for name in set(FILTERS) - {"sharding"}:
            for value in {getattr(one, name) for one in RECIPES}:
                assert found(name, value) == [
                    one for one in RECIPES if getattr(one, name) == value
                ], (name, value)
        for name in NAMES:
            wanted = [one for one in RECIPES if one.sharding_name in (name, f"{name}/{one.copies}")]
            assert found("sharding", name) == wanted, name
        assert found("data_parallel", 3) == []
        both = recipe_page(store, campaign.name, filters={"sharding": "zero-1", "data_parallel": 2})
        assert [item.recipe for item in both.items] == [RECIPES[7], RECIPES[8]]


def test_a_question_has_a_key_for_each_filter() -> None:
    assert set(RecipeQuestion.model_fields) == {
        *FILTERS,
        "custom",
        "by",
        "page",
        "page_size",
        "max_memory_gb",
    }
