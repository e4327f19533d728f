"""Campaigns around one recipe: each value of a dimension in turn, and strong and weak scaling over
numbers of nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frontrunner import api
from frontrunner.config.campaign import CampaignFile, StoreSettings, read_campaign_file
from frontrunner.config.recipe_file import read
from frontrunner.evaluators.analytic import variations
from frontrunner.evaluators.analytic.scaling import check_counts
from frontrunner.evaluators.analytic.variations import MeasuredScaling, Sweep, Tried
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.recipe_actions import (
    data_of_file,
    names_a_file,
    recipe_by_id,
    refuse_file_of_others,
)
from frontrunner.results.arrays import LastAttempts
from frontrunner.results.snapshot import attempts_of
from frontrunner.search.campaign_setup import stored_spec, stored_survey
from frontrunner.search.driver import Conclusion, OnDriver
from frontrunner.search.listener import Listener
from frontrunner.search.spec import Budget, CampaignSpec, SearchSettings
from frontrunner.search.strategy import TOKENS_ALONE
from frontrunner.spaces.errors import (
    MOST_NAME_CHARACTERS,
    InvalidInput,
    campaign_name_from,
    did_you_mean,
    shown_key,
)
from frontrunner.spaces.problem import GlobalBatch
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.space import Space, Survey, usual_space
from frontrunner.spaces.validation import validate
from frontrunner.spaces.variants import AROUND, with_values
from frontrunner.store import LocalStore

COUNT = re.compile("[0-9]{1,9}")
FLAGS = {"true": True, "false": False}
NAME = "--dimension tensor_parallel=1,2,4"
BY_CAMPAIGN = "name a campaign file to measure it with by --campaign FILE"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A recipe, and the campaign whose machines, data and space it is measured with."""

    recipe: Recipe
    spec: CampaignSpec


def source_of(
    recipe: str, *, campaign: str | Path | None = None, store: str | None = None
) -> Source:
    """Return a recipe of a store by its id, or of a recipe file; `campaign` is a file to measure it
    with instead.
    """
    if campaign is not None:
        spec = read_campaign_file(Path(campaign)).spec
        return Source(
            recipe=(
                read(Path(recipe)).recipe if names_a_file(recipe) else recipe_by_id(spec, recipe)
            ),
            spec=spec,
        )
    if names_a_file(recipe):
        file = read(Path(recipe))
        refuse_file_of_others(file, recipe)
        spec = CampaignSpec(
            name=campaign_name_from(Path(recipe).stem),
            problem=file.problem,
            space=usual_space(file.problem),
            search=SearchSettings(seed=file.training.seed),
            probe=file.training.probe,
            data=data_of_file(
                file, recipe, may_be_elsewhere=True, remedy=BY_CAMPAIGN
            ),  # a preview reads none
            dispatch=file.training.nodes.dispatch,
        )
        return Source(recipe=file.recipe, spec=spec)
    found = LocalStore(store).show(recipe)
    own = [
        stored_spec(one.campaign) for one in found.appearances if one.campaign.figures != "imported"
    ]
    if not own:
        what = (
            f"recipe {found.recipe_id} is of an imported table, which does not say how to measure"
            " it here"
        )
        raise InvalidInput(what, hint=BY_CAMPAIGN)
    spec = min(
        own, key=lambda spec: (spec.evaluator_kind.simulates, spec.search.strategy in AROUND)
    )
    if (
        spec.search.strategy == "scale"
    ):  # whose problem has as many nodes and batches as it compares
        batch = GlobalBatch(
            minimum=found.recipe.global_batch_seqs, maximum=found.recipe.global_batch_seqs
        )
        cluster = replace(spec.problem.cluster, nodes=nodes_used(found.recipe, spec.problem))
        space = spec.space.with_choices(devices=(), accumulation=())
        spec = replace(
            spec, problem=replace(spec.problem, cluster=cluster, global_batch=batch), space=space
        )
    return Source(recipe=found.recipe, spec=spec)


def sweep_spec(
    source: Source, dimensions: Sequence[str] = (), budget: Budget | None = None, repeats: int = 1
) -> CampaignSpec:
    """Return the campaign that measures a recipe with each value of these dimensions, one at a
    time.

    A dimension is a name, whose values are the space's, or `name=value,value`; by default all with
    a choice are varied.
    """
    spec, values = source.spec, dict[str, tuple[Choice, ...]]()
    for text in dimensions:
        name, equals, listed = text.partition("=")
        values[name] = _values(spec, name, listed if equals else None)
    if not dimensions:
        listed_ones = {name: getattr(spec.space, name) for name in DIMENSIONS}
        listed_ones |= {name: knob.values for name, knob in spec.space.custom.items()}
        values = {name: found for name, found in listed_ones.items() if len(found) > 1}
    if not values:
        raise InvalidInput(
            f"the space of {spec.name} has no dimension with a choice", hint=f"name one: {NAME}"
        )
    space = with_values(spec.space, source.recipe, **values)
    return _around(replace(spec, space=space), "sweep", source.recipe, budget, repeats)


def _values(spec: CampaignSpec, name: str, listed: str | None) -> tuple[Choice, ...]:
    known = {*DIMENSIONS, *spec.space.custom}
    if name not in known:
        raise InvalidInput(f"unknown dimension {shown_key(name)}", hint=did_you_mean(name, known))
    if (knob := spec.space.custom.get(name)) is not None:
        if listed is not None:
            raise InvalidInput(
                f"the values of {name} are those of space.custom", hint=f"name it alone: {name}"
            )
        return knob.values
    if name == "accumulation" and not spec.space.accumulation:
        raise InvalidInput(
            "accumulation follows from the fixed global batch: it cannot be varied alone"
        )
    if listed is not None:
        kind = DIMENSIONS[name].type
        typed = [_typed(part.strip(), kind) for part in listed.split(",")]
        found: tuple[Choice, ...] = getattr(validate(Space, {name: typed}, prefix="space"), name)
        return found
    own, usual = getattr(spec.space, name), getattr(usual_space(spec.problem), name)
    found = own if len(own) > 1 else usual if len(usual) > 1 else DIMENSIONS[name].values
    if DIMENSIONS[name].kind == "flag":
        found = (False, True)
    if len(found) < 2:
        raise InvalidInput(
            f"the space of {spec.name} has one value of {name}",
            hint=f"list its values: {name}=1,2,4",
        )
    return found


def _typed(word: str, kind: type) -> Choice:
    if kind is bool:
        return FLAGS.get(word, word)
    return int(word) if kind is int and COUNT.fullmatch(word) else word


def scale_spec(
    source: Source, nodes: Sequence[int], budget: Budget | None = None, repeats: int = 1
) -> CampaignSpec:
    """Return the campaign that measures a recipe on these numbers of nodes, and on its own.

    Its batch grows with the nodes for weak scaling, and stays for strong scaling.
    """
    recipe, problem = source.recipe, source.spec.problem
    width = problem.cluster.devices_per_node
    if recipe.devices % width:
        what = f"the recipe takes {recipe.devices} devices of nodes with {width} each"
        raise InvalidInput(f"{what}: expected whole nodes, which others can be compared with")
    counts = check_counts(sorted({*check_counts(nodes, width), nodes_used(recipe, problem)}), width)
    largest = replace(problem, cluster=replace(problem.cluster, nodes=counts[-1]))
    replica, at_once = recipe.devices // recipe.data_parallel, recipe.micro_batch_seqs
    replicas = [count * width / replica for count in counts]
    strong = {
        int(per)
        for dp in replicas
        if dp >= 1 and (per := recipe.global_batch_seqs / at_once / dp).is_integer()
    }
    batches = [
        recipe.global_batch_seqs,
        *(int(at_once * recipe.accumulation * dp) for dp in replicas if dp >= 1),
    ]
    space = with_values(
        source.spec.space,
        recipe,
        devices=tuple(count * width for count in counts),
        accumulation=tuple(sorted({recipe.accumulation, *strong})),
    )
    batch = GlobalBatch(minimum=min(batches), maximum=max(batches))
    spec = replace(source.spec, problem=replace(largest, global_batch=batch), space=space)
    return _around(spec, "scale", recipe, budget, repeats)


def _around(
    spec: CampaignSpec, strategy: str, recipe: Recipe, budget: Budget | None, repeats: int
) -> CampaignSpec:
    """Return the campaign with a strategy that measures what is around the recipe; a table has no
    recipe to measure.
    """
    if spec.evaluator_kind.looks_up:
        what = (
            f"campaign {spec.name} looks recipes up in a table: nothing can be measured around one"
        )
        raise InvalidInput(what, hint=BY_CAMPAIGN)
    search = replace(
        spec.search,
        strategy=strategy,
        baseline=recipe,
        objectives=TOKENS_ALONE,
        repeats=repeats,
    )
    suffix = f"-{strategy}"
    name = f"{spec.name[: MOST_NAME_CHARACTERS - len(suffix)]}{suffix}"
    return replace(spec, name=name, search=search, budget=budget or Budget(), file=None)


def sweep(
    recipe: str,
    dimensions: Sequence[str] = (),
    *,
    campaign: str | Path | None = None,
    budget: Budget | None = None,
    repeats: int = 1,
    store: str | None = None,
    **launched: Any,
) -> Conclusion:
    """Measure a recipe with each value of these dimensions, one at a time, as a campaign.

    See `source_of` and `sweep_spec`; the other arguments are those of `launch`.
    """
    source = source_of(recipe, campaign=campaign, store=store)
    return launch(sweep_spec(source, dimensions, budget, repeats), store=store, **launched)


def scale(
    recipe: str,
    nodes: Sequence[int],
    *,
    campaign: str | Path | None = None,
    budget: Budget | None = None,
    repeats: int = 1,
    store: str | None = None,
    **launched: Any,
) -> Conclusion:
    """Measure a recipe's strong and weak scaling over these numbers of nodes, as a campaign. See
    `sweep`.
    """
    source = source_of(recipe, campaign=campaign, store=store)
    return launch(scale_spec(source, nodes, budget, repeats), store=store, **launched)


def launch(
    spec: CampaignSpec,
    *,
    store: str | None = None,
    name: str | None = None,
    listener: Listener | None = None,
    on_driver: OnDriver | None = None,
) -> Conclusion:
    """Run a campaign of `sweep_spec` or `scale_spec`; under a name of its own unless one is
    given.
    """
    file = CampaignFile(spec=spec, store=StoreSettings(), named=False)
    return api.launch(file, store=store, name=name, listener=listener, on_driver=on_driver)


def preview(spec: CampaignSpec) -> Sweep | MeasuredScaling:
    """Return what a campaign around a recipe would measure, with the estimates; nothing is run."""
    return _found(spec, spec.survey(), {})


def measured(campaign: str | None, *, store: str | None = None) -> Sweep | MeasuredScaling | None:
    """Return what a stored campaign around a recipe found, beside the estimates; None for any other
    campaign.
    """
    with LocalStore(store).opened() as found:
        record = found.campaign(campaign)
        spec = stored_spec(record)
        if spec.search.strategy not in AROUND:
            return None
        return _found(spec, stored_survey(spec), LastAttempts(attempts_of(found, record)))


def _found(spec: CampaignSpec, survey: Survey, tried: Tried) -> Sweep | MeasuredScaling:
    center = spec.search.baseline
    assert center is not None  # noqa: S101 - SearchSettings requires it of these strategies
    if spec.search.strategy == "scale":
        return variations.measured_scaling(center, survey, tried)
    return variations.sweep(center, survey, tried)
