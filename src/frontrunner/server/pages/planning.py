"""Pages before a campaign: planning by formulas, and launching."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frontrunner.config.campaign import parse_campaign
from frontrunner.config.toml_file import Table, parse_toml
from frontrunner.evaluators.analytic.scaling import Scaling, scaling
from frontrunner.planning import plan_of
from frontrunner.search.campaign_setup import free_name
from frontrunner.search.spec import CampaignSpec
from frontrunner.server.auth import Role
from frontrunner.server.pages.rendering import macro, page, render, static_file
from frontrunner.server.requests import CampaignBody, campaign_from, campaign_table, parsed
from frontrunner.server.service import OPERATOR, CachedRoute, RoleOf, ServiceOf, from_validation
from frontrunner.server.settings import KINDS
from frontrunner.spaces import presets
from frontrunner.spaces.cluster import MOST_DEVICES, PRECISIONS
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, NothingLegal
from frontrunner.spaces.model import ACTIVATIONS, POSITIONS
from frontrunner.views.charts.cut import cut
from frontrunner.views.columns import ESTIMATES, used
from frontrunner.views.plan import TIGHT

router = APIRouter(route_class=CachedRoute)
TOP = 12
FACTORS = (0.25, 0.5, 1, 2, 4)
MOST_FACTOR = 64
MOST_STAGES, MOST_STAGE_COUNTS = 64, 8
MOST_CHARACTERS = 32
MOST_CAMPAIGN_CHARACTERS = 100_000
Name = Annotated[str, Field(max_length=64)]
MESSAGE = re.compile(r"(?:model|cluster|problem)\.(?:links\.)?(\w+) = .*?: expected (.*)", re.DOTALL)
SECTION = re.compile(r"\b(?:model|cluster|problem)\.(?=[a-z])")
NO_NAME = {"site": "this machine", "trainer": "frontrunner's own", "data": "the built-in text", "table": "none"}


@dataclass(frozen=True)
class Entry:
    """Form field for the key `name` of a `section`; without a `default`, an empty one counts as the preset's."""

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
    ),
)
GROUPS = (MODEL, CLUSTER, PROBLEM)
ENTRIES = {entry.name: entry for group in GROUPS for entry in (group.preset, *group.entries) if entry is not None}
DEFAULTS = {name: entry.default for name, entry in ENTRIES.items() if entry.default != ""}


@dataclass(frozen=True, kw_only=True)
class PlanForm:
    """Fields as typed, their campaign (None with errors), errors by field, and what empty fields count as."""

    typed: Mapping[str, str]
    spec: CampaignSpec | None
    errors: Mapping[str, str]
    placeholders: Mapping[str, str]


def read_form(given: Mapping[str, str]) -> PlanForm:
    """Read the form as it was sent; a field that needs a value is an error if sent empty, a default if not sent."""
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
            errors = {found[1]: SECTION.sub("", found[2])} if found and is_of_field else {"": error.message}
    return PlanForm(typed=typed, spec=spec, errors=errors, placeholders=_placeholders(typed))


def _placeholders(typed: Mapping[str, str]) -> dict[str, str]:
    named = {name: typed.get(name, "") for name in ("model", "cluster")}
    chosen = {name: text if text in ENTRIES[name].options else str(DEFAULTS[name]) for name, text in named.items()}
    model, cluster = presets.model_preset(chosen["model"]), presets.cluster_preset(chosen["cluster"])
    found = {"kv_heads": "as heads", "ffn_hidden": "4 x hidden", "activation": "gelu", "positions": "rotary"}
    found |= model | cluster | cluster["links"]
    found["tied_embeddings"] = "yes" if model.get("tied_embeddings") else "no"
    found["memory_gib_per_device"] = "the device's"
    return {name: str(found.get(name, "none")) for name in ENTRIES}


def _value(text: str | int) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text if str(text).isascii() else "")
    return {"yes": True, "no": False}.get(str(text), text)


def planned_campaign(typed: Mapping[str, str]) -> CampaignSpec:
    """Return the campaign whose space the page plans: the usual choices, with what was typed over the presets."""
    of: dict[str, Table] = {"model": {}, "cluster": {}, "links": {}, "problem": {}, "": {}}
    for name, text in (DEFAULTS | dict(typed)).items():
        of[ENTRIES[name].section][name] = _value(text)
    custom = {"name": "custom"}
    model = {**presets.model_preset(of[""]["model"]), **of["model"]} | (custom if of["model"] else {})
    if model.get("positions", "rotary") == "rotary":
        model.pop("max_positions", None)  # of a preset with learned ones
    cluster = presets.cluster_preset(of[""]["cluster"])
    device = str(of[""].get("device", cluster["device"]))
    is_custom = bool(of["links"]) or len(of["cluster"]) > 1 or device != cluster["device"]
    if device != cluster["device"]:
        cluster = {**presets.device_preset(device), **{key: cluster[key] for key in ("devices_per_node", "links")}}
    cluster = {**cluster, **of["cluster"], "links": {**cluster["links"], **of["links"]}}
    layers = model["layers"]
    even = [one for one in range(1, MOST_STAGES + 1) if isinstance(layers, int) and layers and layers % one == 0]
    even.sort(key=lambda stages: (stages.bit_count() > 1, stages))  # powers of two first
    table = {
        "model": model,
        "cluster": cluster | (custom if is_custom else {}),
        "problem": of["problem"],
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
    return parse_campaign(table, default_name="plan", base=Path.cwd()).spec


def _answer(spec: CampaignSpec) -> Markup:
    try:
        plan = plan_of(spec)
    except NothingLegal as error:
        return render("launch_checked.html", error=error)
    found, problem, rows = _on_other_counts(spec), spec.problem, list(enumerate(plan.fastest(TOP), start=1))
    return render(
        "plan_answer.html",
        plan=plan,
        problem=problem,
        scaling=found,
        why_tight=TIGHT,
        fits_on=next((row.nodes for row in found.strong if row.best is not None), None),
        rows=rows,
        columns=[column for column in used(ESTIMATES, rows) if column.key != "model_tflops_per_device"],
        cut=cut(rows[0][1].recipe, problem.cluster, layers=problem.model.layers) if rows else None,
    )


def _on_other_counts(spec: CampaignSpec) -> Scaling:
    """Return the what-if table; if nothing fits on any of its counts, they are doubled until something does."""
    cluster = spec.problem.cluster
    most = min(MOST_DEVICES // cluster.devices_per_node, MOST_FACTOR * cluster.nodes)
    counts = sorted({max(1, int(cluster.nodes * factor)) for factor in FACTORS})
    found = scaling(spec.space, spec.problem, [count for count in counts if count <= most])
    more = 2 * counts[-1]
    while more <= most and not any(row.best for row in found.strong):
        found = replace(found, strong=found.strong + scaling(spec.space, spec.problem, [more]).strong)
        more *= 2
    return found


@router.get("/plan")
async def plan(request: Request, service: ServiceOf) -> Response:
    """The planning page with its first plan, or with what is wrong next to the fields."""
    form = read_form(request.query_params)
    spec = form.spec
    answer = "" if spec is None else await service.slowly(lambda: _answer(spec))
    return page("plan.html", here="/plan", form=form, groups=GROUPS, answer=answer)


@router.get("/plan/answer")
async def plan_answer(request: Request, service: ServiceOf) -> Response:
    """The plan, with the fields' errors; those alone if there are any."""
    form = read_form(request.query_params)
    errors = macro("plan_macros.html", "errors", ENTRIES.values(), form)
    spec = form.spec
    if spec is None:
        return HTMLResponse(errors, headers={"HX-Reswap": "none"})
    answer = await service.slowly(lambda: _answer(spec))
    return HTMLResponse(answer + errors, headers={"HX-Replace-Url": f"/plan?{urlencode(form.typed)}"})


@router.get("/plan/fields/{name}")
def plan_fields(request: Request, name: Literal["model", "cluster"]) -> Response:
    """The fields under a preset, which show its values if they are empty."""
    group = {"model": MODEL, "cluster": CLUSTER}[name]
    return HTMLResponse(macro("plan_macros.html", "fields", group.entries, read_form(request.query_params)))


class CampaignText(BaseModel):
    """A campaign file as text, and the registered names chosen with it; empty if none was."""

    model_config = ConfigDict(extra="forbid")

    campaign: Annotated[str, Field(max_length=MOST_CAMPAIGN_CHARACTERS)]
    site: Name = ""
    trainer: Name = ""
    data: Name = ""
    table: Name = ""

    def body(self) -> CampaignBody:
        """Return the campaign that the text holds; raises `InvalidInput` for invalid TOML and unknown keys."""
        table = parse_toml(self.campaign, "the campaign file")
        for kind in KINDS:
            chosen = getattr(self, kind)
            if chosen and table.setdefault(kind, chosen) != chosen:
                raise InvalidInput(f"{kind} = {chosen!r} was chosen, and the campaign file names another {kind}")
        try:
            return CampaignBody.model_validate(table)
        except ValidationError as error:
            raise from_validation(error.errors()) from None


@router.get("/launch")
def launch_page(service: ServiceOf, role: RoleOf) -> Response:
    """A campaign file to edit and launch."""
    text = static_file("first-campaign.toml").decode()
    offered = {kind: names for kind, names in service.settings.registered.about().items() if names}
    may_change = role is Role.OPERATOR
    return page("launch.html", here="/launch", text=text, offered=offered, absent=NO_NAME, may_change=may_change)


@router.post("/launch/check")
async def check(service: ServiceOf, given: CampaignText) -> Response:
    """What is wrong with a campaign file, or how many recipes it searches; nothing is started."""
    settings = service.settings

    def checked() -> dict[str, Any]:
        try:
            with campaign_from(given.body(), settings.registered, most_points=settings.limits.plan_points) as file:
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
        parsed(table)  # TOML has numbers that no campaign has, and that cannot be passed to a driver
        return service.drivers.launch(table)

    started = await service.slowly(begun, starts=True)
    return Response(status_code=204, headers={"HX-Redirect": f"/campaigns/{started['campaign']}"})
