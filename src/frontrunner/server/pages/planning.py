"""Pages before a campaign: planning by formulas, and launching."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frontrunner.config.campaign import parse_campaign
from frontrunner.config.starter import PROBES, written
from frontrunner.config.toml_file import Table, parse_toml
from frontrunner.evaluators.analytic.breakdown import breakdown
from frontrunner.evaluators.analytic.codes import CODES, FRONTRUNNER
from frontrunner.evaluators.analytic.estimates import Estimate
from frontrunner.evaluators.analytic.scaling import Scaling, ScalingRow, scaling
from frontrunner.planning import plan_of
from frontrunner.recipe_actions import recipe_by_id
from frontrunner.search.campaign_setup import free_name
from frontrunner.search.spec import CampaignSpec
from frontrunner.server.auth import Role
from frontrunner.server.pages.rendering import macro, page, render, static_file
from frontrunner.server.pages.steps import Variant, drawn_in
from frontrunner.server.requests import (
    STEP_DIMENSIONS,
    CampaignBody,
    campaign_from,
    campaign_table,
    parsed,
)
from frontrunner.server.service import OPERATOR, CachedRoute, RoleOf, ServiceOf, from_validation
from frontrunner.server.settings import KINDS
from frontrunner.spaces import presets
from frontrunner.spaces.cluster import MOST_DEVICES, PRECISIONS
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    NothingLegal,
    campaign_name_from,
)
from frontrunner.spaces.model.feed_forward import ACTIVATIONS
from frontrunner.spaces.model.tables import POSITIONS
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.variants import choices_of
from frontrunner.text import to_json
from frontrunner.views.charts.cut import cut
from frontrunner.views.charts.recipe import memory_bars, step_bars
from frontrunner.views.charts.scaling import scaling_curve
from frontrunner.views.columns import (
    ESTIMATES,
    FIGURES,
    MEMORY_BOUNDS,
    RATE_BOUNDS,
    STEP_BOUNDS,
    Column,
    used,
)
from frontrunner.views.plan import MAY_NOT_FIT, SCALING, TIGHT

router = APIRouter(route_class=CachedRoute)
TOP = 12
FACTORS = (0.25, 0.5, 1, 2, 4)
MOST_FACTOR = 64
MOST_STAGES, MOST_STAGE_COUNTS = 64, 8
MOST_CHARACTERS = 32
MOST_CAMPAIGN_CHARACTERS = 100_000
Name = Annotated[str, Field(max_length=64)]
MESSAGE = re.compile(
    r"(?:model|cluster|problem)\.(?:links\.)?(\w+) = .*?: expected (.*)", re.DOTALL
)
SECTION = re.compile(r"\b(?:model|cluster|problem)\.(?=[a-z])")
NO_NAME = {
    "site": "this machine",
    "trainer": "frontrunner's own",
    "data": "the built-in text",
    "table": "none",
}


@dataclass(frozen=True)
class Entry:
    """Form field for the key `name` of a `section`; without a `default`, an empty one counts as the
    preset's.
    """

    name: str
    section: str
    label: str
    unit: str = ""
    options: tuple[str, ...] = ()
    default: str | int = ""


@dataclass(frozen=True)
class Group:
    """Fields that belong together; those of a `preset` are typed over it."""

    name: str
    preset: Entry | None
    entries: tuple[Entry, ...]


MODEL = Group(
    "Model",
    Entry("model", "", "preset", options=presets.preset_names("models"), default="frontier-22b"),
    (
        Entry("layers", "model", "layers"),
        Entry("hidden", "model", "hidden size"),
        Entry("heads", "model", "heads"),
        Entry("kv_heads", "model", "KV heads"),
        Entry("ffn_hidden", "model", "FFN size"),
        Entry("vocabulary", "model", "vocabulary"),
        Entry("activation", "model", "activation", options=ACTIVATIONS),
        Entry("positions", "model", "positions", options=POSITIONS),
        Entry("tied_embeddings", "model", "tied embedding", options=("yes", "no")),
    ),
)
CLUSTER = Group(
    "Machine",
    Entry("cluster", "", "preset", options=presets.preset_names("clusters"), default="frontier"),
    (
        Entry("nodes", "cluster", "nodes", default=16),
        Entry("devices_per_node", "cluster", "devices per node"),
        Entry("device", "", "device", options=presets.preset_names("devices")),
        Entry("memory_gib_per_device", "cluster", "memory", "GiB"),
        Entry("pair_gb_per_s", "links", "device pair", "GB/s"),
        Entry("node_gb_per_s", "links", "within a node", "GB/s"),
        Entry("nic_gb_per_s", "links", "network port", "GB/s"),
        Entry("nics_per_node", "links", "ports per node"),
    ),
)
PROBLEM = Group(
    "Training",
    None,
    (
        Entry("sequence_length", "problem", "sequence", "tokens", default=2048),
        Entry("global_batch", "problem", "global batch", "sequences", default=1024),
        Entry("precision", "problem", "precision", options=PRECISIONS, default="bf16"),
        Entry("code", "software", "training code", options=tuple(CODES)),
    ),
)
GROUPS = (MODEL, CLUSTER, PROBLEM)
ENTRIES = {
    entry.name: entry
    for group in GROUPS
    for entry in (group.preset, *group.entries)
    if entry is not None
}
ON_COUNTS: tuple[Column[ScalingRow], ...] = (
    *(
        column
        for column in SCALING
        if column.key in ("nodes", "devices", "recipe_id", "tokens_per_s")
    ),
    RATE_BOUNDS.of(attrgetter("best")),
    *(
        column
        for column in SCALING
        if column.key
        in (
            "tokens_per_s_per_device",
            "efficiency",
            "peak_memory_bytes_max_rank",
            "node_hours",
        )
    ),
    Column("fit", "fit", lambda row: row, "{0.fitting:,} of {0.legal:,}".format),
)
"""The what-if table."""
INTERVALS: Mapping[str, Column[Any]] = {
    "tokens_per_s": RATE_BOUNDS,
    "step_time_s_median": STEP_BOUNDS,
    "peak_memory_bytes_max_rank": MEMORY_BOUNDS,
}
DEFAULTS = {name: entry.default for name, entry in ENTRIES.items() if entry.default != ""}


@dataclass(frozen=True, kw_only=True)
class PlanForm:
    """Fields as typed, their campaign (None with errors), errors by field, and what empty fields
    count as.
    """

    typed: Mapping[str, str]
    spec: CampaignSpec | None
    errors: Mapping[str, str]
    placeholders: Mapping[str, str]


def read_form(given: Mapping[str, str]) -> PlanForm:
    """Read the form as it was sent; a field that needs a value is an error if sent empty, a default
    if not sent.
    """
    typed = {name: text.strip()[:MOST_CHARACTERS] for name, text in given.items() if text.strip()}
    errors = {name: "expected a value" for name in DEFAULTS if name in given and name not in typed}
    for name, text in typed.items():
        if name not in ENTRIES:
            errors[""] = f"there is no field {name[:MOST_CHARACTERS]!r}"
        elif (options := ENTRIES[name].options) and text not in options:
            errors[name] = f"one of {', '.join(options)}"
    spec = None
    if not errors:
        try:
            spec = planned_campaign(typed)
        except FrontrunnerError as error:
            found = MESSAGE.match(error.message)
            is_of_field = found is not None and found[1] in ENTRIES
            errors = (
                {found[1]: SECTION.sub("", found[2])}
                if found and is_of_field
                else {"": error.message}
            )
    return PlanForm(typed=typed, spec=spec, errors=errors, placeholders=_placeholders(typed))


def _placeholders(typed: Mapping[str, str]) -> dict[str, str]:
    named = {name: typed.get(name, "") for name in ("model", "cluster")}
    chosen = {
        name: text if text in ENTRIES[name].options else str(DEFAULTS[name])
        for name, text in named.items()
    }
    model, cluster = (
        presets.model_preset(chosen["model"]),
        presets.cluster_preset(chosen["cluster"]),
    )
    found = {
        "kv_heads": "as heads",
        "ffn_hidden": "4 x hidden",
        "activation": "gelu",
        "positions": "rotary",
    }
    found |= model | cluster | cluster["links"] | {"code": FRONTRUNNER.name}
    found["tied_embeddings"] = "yes" if model.get("tied_embeddings") else "no"
    found["memory_gib_per_device"] = "the device's"
    return {name: str(found.get(name, "none")) for name in ENTRIES}


def _value(text: str | int) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text if str(text).isascii() else "")
    return {"yes": True, "no": False}.get(str(text), text)


def planned_campaign(typed: Mapping[str, str]) -> CampaignSpec:
    """Return the campaign whose space the page plans: the usual choices, with what was typed over
    the presets.
    """
    return parse_campaign(_planned_table(typed), default_name="plan", base=Path.cwd()).spec


def _planned_table(typed: Mapping[str, str]) -> dict[str, Table]:
    of: dict[str, Table] = {
        "model": {},
        "cluster": {},
        "links": {},
        "problem": {},
        "software": {},
        "": {},
    }
    for name, text in (DEFAULTS | dict(typed)).items():
        of[ENTRIES[name].section][name] = _value(text)
    custom = {"name": "custom"}
    model = {**presets.model_preset(of[""]["model"]), **of["model"]} | (
        custom if of["model"] else {}
    )
    if model.get("positions", "rotary") == "rotary":
        model.pop("max_positions", None)  # of a preset with learned ones
    cluster = presets.cluster_preset(of[""]["cluster"])
    device = str(of[""].get("device", cluster["device"]))
    is_custom = bool(of["links"]) or len(of["cluster"]) > 1 or device != cluster["device"]
    if device != cluster["device"]:
        cluster = {
            **presets.device_preset(device),
            **{key: cluster[key] for key in ("devices_per_node", "links")},
        }
    cluster = {**cluster, **of["cluster"], "links": {**cluster["links"], **of["links"]}}
    layers = model["layers"]
    even = [
        one
        for one in range(1, MOST_STAGES + 1)
        if isinstance(layers, int) and layers and layers % one == 0
    ]
    even.sort(key=lambda stages: (stages.bit_count() > 1, stages))  # powers of two first
    return {
        "model": model,
        "cluster": cluster | (custom if is_custom else {}),
        "problem": of["problem"],
        **({"software": of["software"]} if of["software"] else {}),
        "space": {
            "tensor_parallel": [1, 2, 4, 8],
            "pipeline_parallel": sorted(even[:MOST_STAGE_COUNTS]) or [1],
            "micro_batch_seqs": [1, 2, 4],
            "schedule": ["1f1b"],
            "sharding": ["none", "zero-1", "zero-3"],
            "recompute": ["none", "full"],
            "sequence_parallel": [False, True],
        },
    }


def campaign_text(typed: Mapping[str, str], recipe: Recipe | None) -> str:
    """Return a campaign file that searches what the page plans, or (with a recipe) measures that
    alone.
    """
    table = _planned_table(typed)
    spec = parse_campaign(table, default_name="plan", base=Path.cwd()).spec
    cluster, named = spec.problem.cluster, spec.problem.model.name
    name = campaign_name_from(
        "-".join([named, cluster.name, str(cluster.nodes), *([recipe.layout()] if recipe else [])])
    )
    for section, presets_of in (
        ("model", presets.model_preset),
        ("cluster", presets.cluster_preset),
    ):
        chosen = str(typed.get(section, DEFAULTS[section]))
        of_preset = presets_of(chosen)
        more = {"nodes": cluster.nodes} if section == "cluster" else {}
        if table[section] == of_preset | more:
            table[section] = {"preset": chosen, **more}
    if recipe is not None:
        choices = choices_of(recipe, spec.survey())
        table["space"] = {key: [choices[key]] for key in table["space"]}
    table["search"] = {"strategy": "guided" if recipe is None else "exhaustive"}
    table["budget"] = {"probes": PROBES if recipe is None else 1}
    rehearsal = (
        'evaluator = "simulated"  # a rehearsal by formulas; without this line probes train on the'
        " cluster"
    )
    return written(
        f'name = "{name}"\n{rehearsal}',
        table,
        {"budget": {"probes": "at most, failed ones included"}},
    )


def _answer(form: PlanForm, spec: CampaignSpec) -> Markup:
    try:
        plan = plan_of(spec)
    except NothingLegal as error:
        return render("launch_checked.html", error=error)
    found, problem, rows = (
        _on_other_counts(spec),
        spec.problem,
        list(enumerate(plan.fastest(TOP), start=1)),
    )
    return render(
        "plan_answer.html",
        query=urlencode(form.typed),
        on_nodes=lambda count: urlencode({**form.typed, "nodes": count}),
        curve=scaling_curve(found),
        plan=plan,
        problem=problem,
        scaling=found,
        on_counts=used(ON_COUNTS, found.strong),
        why_tight=TIGHT,
        why_doubtful=MAY_NOT_FIT,
        fits_on=next((row.nodes for row in found.strong if row.best is not None), None),
        rows=rows,
        columns=[
            column for column in used(ESTIMATES, rows) if column.key != "model_tflops_per_device"
        ],
        cut=cut(rows[0][1].recipe, problem.cluster, layers=len(problem.model.layers))
        if rows
        else None,
    )


def _on_other_counts(spec: CampaignSpec) -> Scaling:
    """Return the what-if table; if nothing fits on any of its counts, they are doubled until
    something does.
    """
    cluster = spec.problem.cluster
    most = min(MOST_DEVICES // cluster.devices_per_node, MOST_FACTOR * cluster.nodes)
    counts = sorted({max(1, int(cluster.nodes * factor)) for factor in FACTORS})
    found = scaling(spec.space, spec.problem, [count for count in counts if count <= most])
    more = 2 * counts[-1]
    while more <= most and not any(row.best for row in found.strong):
        found = replace(
            found, strong=found.strong + scaling(spec.space, spec.problem, [more]).strong
        )
        more *= 2
    return found


@router.get("/plan")
async def plan(request: Request, service: ServiceOf) -> Response:
    """The planning page with its first plan, or with what is wrong next to the fields."""
    form = read_form(request.query_params)
    spec = form.spec
    answer = "" if spec is None else await service.slowly(lambda: _answer(form, spec))
    return page("plan.html", here="/plan", form=form, groups=GROUPS, answer=answer)


@router.get("/plan/answer")
async def plan_answer(request: Request, service: ServiceOf) -> Response:
    """The plan, with the fields' errors; those alone if there are any."""
    form = read_form(request.query_params)
    errors = macro("plan_macros.html", "errors", ENTRIES.values(), form)
    spec = form.spec
    if spec is None:
        return HTMLResponse(errors, headers={"HX-Reswap": "none"})
    answer = await service.slowly(lambda: _answer(form, spec))
    return HTMLResponse(
        answer + errors, headers={"HX-Replace-Url": f"/plan?{urlencode(form.typed)}"}
    )


def _chosen(
    request: Request, others: Sequence[str] = ()
) -> tuple[PlanForm, CampaignSpec, dict[str, str]]:
    """Return the form of a request, its campaign, and what else it names: a `recipe` by its id, and
    `others`.
    """
    given = dict(request.query_params)
    more = {key: given.pop(key) for key in ("recipe", *others) if key in given}
    form = read_form(given)
    if form.spec is None:
        field, message = next(iter(form.errors.items()))
        raise InvalidInput(
            f"{field}: {message}" if field else message, hint="correct it on the page Plan"
        )
    return form, form.spec, more


def _recipe(spec: CampaignSpec, recipe_id: str | None) -> Recipe:
    """Return the recipe of a plan with this id, or (None) the fastest that fits."""
    if recipe_id is not None:
        return recipe_by_id(spec, recipe_id)
    fastest = plan_of(spec).fastest(1)
    if not fastest:
        raise NothingLegal(
            "no recipe of the plan is estimated to fit", hint="more nodes, or shorter sequences"
        )
    return fastest[0].recipe


def _figures(estimate: Estimate) -> list[tuple[str, str]]:
    """Return (figure, what it is, with its interval) of an estimate."""
    found = []
    for column in FIGURES:
        if column.value(estimate) is not None:
            interval = INTERVALS.get(column.key)
            ends = "" if interval is None else f", 95 %: {interval.cell(estimate)}"
            found.append((column.cell(estimate), (column.label or column.title) + ends))
    return found


@router.get("/plan/recipe")
async def plan_recipe(request: Request, service: ServiceOf, role: RoleOf) -> Response:
    """One recipe of a plan: where its step's time and its memory go, and its step rank by rank."""
    form, spec, more = _chosen(request)

    def opened() -> Response:
        recipe = _recipe(spec, more.get("recipe"))
        problem = spec.problem
        parts = breakdown(recipe, problem)
        return page(
            "plan_recipe.html",
            here="/plan",
            query=urlencode(form.typed),
            recipe=recipe,
            problem=problem,
            breakdown=parts,
            figures=_figures(parts.estimate),
            cut=cut(recipe, problem.cluster, layers=len(problem.model.layers)),
            step=step_bars(parts),
            memory=memory_bars(parts),
            may_change=role is Role.OPERATOR,
        )  # fmt: skip

    return await service.slowly(opened)


@router.get("/plan/step")
async def plan_step(request: Request, service: ServiceOf) -> Response:
    """One step of a plan's recipe, or of a variant, for step.js."""
    _, spec, more = _chosen(request, STEP_DIMENSIONS)
    recipe_id = more.pop("recipe", None)
    try:
        asked = Variant.model_validate(more)
    except ValidationError as error:
        raise from_validation(error.errors()) from None
    changes = {name: getattr(asked, name) for name in STEP_DIMENSIONS}

    def drawn() -> str:
        return to_json(drawn_in(_recipe(spec, recipe_id), spec, changes))

    return Response(await service.slowly(drawn), media_type="application/json")


@router.get("/plan/fields/{name}")
def plan_fields(request: Request, name: Literal["model", "cluster"]) -> Response:
    """The fields under a preset, which show its values if they are empty."""
    group = {"model": MODEL, "cluster": CLUSTER}[name]
    return HTMLResponse(
        macro("plan_macros.html", "fields", group.entries, read_form(request.query_params))
    )


class CampaignText(BaseModel):
    """A campaign file as text, and the registered names chosen with it; empty if none was."""

    model_config = ConfigDict(extra="forbid")

    campaign: Annotated[str, Field(max_length=MOST_CAMPAIGN_CHARACTERS)]
    site: Name = ""
    trainer: Name = ""
    data: Name = ""
    table: Name = ""

    def body(self) -> CampaignBody:
        """Return the campaign that the text holds; raises `InvalidInput` for invalid TOML and
        unknown keys.
        """
        table = parse_toml(self.campaign, "the campaign file")
        for kind in KINDS:
            chosen = getattr(self, kind)
            if chosen and table.setdefault(kind, chosen) != chosen:
                raise InvalidInput(
                    f"{kind} = {chosen!r} was chosen, and the campaign file names another {kind}"
                )
        try:
            return CampaignBody.model_validate(table)
        except ValidationError as error:
            raise from_validation(error.errors()) from None


@router.get("/launch")
async def launch_page(request: Request, service: ServiceOf, role: RoleOf) -> Response:
    """A campaign file to edit and launch: a first one, or what a plan's form says, perhaps with one
    of its recipes.
    """
    text = static_file("first-campaign.toml").decode()
    if request.query_params:
        form, spec, more = _chosen(request)

        def planned() -> str:
            return campaign_text(
                form.typed, recipe_by_id(spec, more["recipe"]) if "recipe" in more else None
            )

        text = await service.slowly(planned)
    offered = {kind: names for kind, names in service.settings.registered.about().items() if names}
    may_change = role is Role.OPERATOR
    return page(
        "launch.html",
        here="/launch",
        text=text,
        offered=offered,
        absent=NO_NAME,
        may_change=may_change,
    )


@router.post("/launch/check")
async def check(service: ServiceOf, given: CampaignText) -> Response:
    """What is wrong with a campaign file, or how many recipes it searches; nothing is started."""
    settings = service.settings

    def checked() -> dict[str, Any]:
        try:
            with campaign_from(
                given.body(), settings.registered, most_points=settings.limits.plan_points
            ) as file:
                spec, found = file.spec, file.spec.survey()
        except FrontrunnerError as error:
            return {"error": error}
        return {
            "error": None,
            "name": spec.name,
            "is_taken": free_name(service.store, spec.name) != spec.name,
            "found": found,
            "why_none": None if found.recipes else next(found.refused_by_count(), None),
            "devices": spec.problem.cluster.devices,
        }

    return page("launch_checked.html", **await service.slowly(checked))


@router.post("/launch", dependencies=OPERATOR)
async def launch(service: ServiceOf, given: CampaignText) -> Response:
    """Start the campaign, and go to its page."""

    def begun() -> dict[str, Any]:
        table = campaign_table(given.body(), service.settings.registered)
        parsed(
            table
        )  # TOML has numbers that no campaign has, and that cannot be passed to a driver
        return service.drivers.launch(table)

    started = await service.slowly(begun, starts=True)
    return Response(status_code=204, headers={"HX-Redirect": f"/campaigns/{started['campaign']}"})
