"""The form of the planning page: its fields with their limits, and what was typed as a question or as complaints.

A preset says every figure of a model or a machine; what is typed beside it counts in its place. So any model and any
machine can be planned, and an empty field shows what counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frontrunner.server.pages.views.plan import PlanQuestion, campaign_of
from frontrunner.spaces.cluster import MOST_DEVICES, MOST_GB_PER_S, MOST_MEMORY_GIB, PRECISIONS
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from frontrunner.spaces.model import ACTIVATIONS, POSITIONS
from frontrunner.spaces.presets import cluster_names, cluster_preset, device_names, model_names, model_preset

MOST_CHARACTERS = 32
"""Of one field: no name of a preset and no number within the limits is longer."""
COMPLAINT = re.compile(r"(?:model|cluster|problem)\.(?:links\.)?(\w+) = .*?: expected (.*)", re.DOTALL)
"""A message about a key of a campaign file, whose last name is the field's."""

SECTION = re.compile(r"\b(?:model|cluster|problem)\.(?=[a-z])")
"""What stands before a key in a message, which no label of the page has."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One field: a number from `least` to `most`, or one of `options`. `unit` is said after the label."""

    name: str
    label: str
    unit: str = ""
    least: float = 1
    most: float = 0
    whole: bool = True
    options: tuple[str, ...] = ()
    needed: bool = False


@dataclass(frozen=True, kw_only=True)
class Group:
    """Fields that belong together; those of a `preset` are typed over it."""

    name: str
    preset: Entry | None
    entries: tuple[Entry, ...]


MODEL = Group(
    name="Model",
    preset=Entry(name="model", label="preset", options=model_names(), needed=True),
    entries=(
        Entry(name="layers", label="layers", most=1_000),
        Entry(name="hidden", label="hidden size", least=8, most=262_144),
        Entry(name="heads", label="heads", most=4_096),
        Entry(name="kv_heads", label="KV heads", most=4_096),
        Entry(name="ffn_hidden", label="FFN size", most=4_194_304),
        Entry(name="vocabulary", label="vocabulary", least=2, most=4_194_304),
        Entry(name="activation", label="activation", options=ACTIVATIONS),
        Entry(name="positions", label="positions", options=POSITIONS),
        Entry(name="tied_embeddings", label="tied embedding", options=("yes", "no")),
    ),
)
CLUSTER = Group(
    name="Machine",
    preset=Entry(name="cluster", label="preset", options=cluster_names(), needed=True),
    entries=(
        Entry(name="nodes", label="nodes", most=MOST_DEVICES, needed=True),
        Entry(name="devices_per_node", label="devices a node", most=1_024),
        Entry(name="device", label="device", options=device_names()),
        Entry(name="memory_gib_per_device", label="memory", unit="GiB", least=0.1, most=MOST_MEMORY_GIB, whole=False),
        Entry(name="pair_gb_per_s", label="device pair", unit="GB/s", least=0.001, most=MOST_GB_PER_S, whole=False),
        Entry(name="node_gb_per_s", label="within a node", unit="GB/s", least=0.001, most=MOST_GB_PER_S, whole=False),
        Entry(name="nic_gb_per_s", label="network port", unit="GB/s", least=0.001, most=MOST_GB_PER_S, whole=False),
        Entry(name="nics_per_node", label="ports a node", most=64),
    ),
)
PROBLEM = Group(
    name="Training",
    preset=None,
    entries=(
        Entry(name="sequence_length", label="sequence", unit="tokens", least=2, most=1_048_576, needed=True),
        Entry(name="global_batch", label="global batch", unit="sequences", most=10_000_000, needed=True),
        Entry(name="precision", label="precision", options=PRECISIONS, needed=True),
    ),
)
GROUPS = (MODEL, CLUSTER, PROBLEM)
ENTRIES = {entry.name: entry for group in GROUPS for entry in (group.preset, *group.entries) if entry is not None}


@dataclass(frozen=True, kw_only=True)
class PlanForm:
    """What was typed, by field; `question` is None where some of it cannot be asked, and `errors` say what.

    An error that is of no field is under the name "".
    """

    typed: Mapping[str, str]
    question: PlanQuestion | None
    errors: Mapping[str, str]


def read_form(given: Mapping[str, str]) -> PlanForm:
    """The form as it was sent; empty fields count as not sent."""
    typed = {name: text.strip()[:MOST_CHARACTERS] for name, text in given.items() if text.strip()}
    errors = {entry.name: "expected a value" for entry in ENTRIES.values() if _is_left_empty(entry, given)}
    values: dict[str, Any] = {}
    for name, text in typed.items():
        try:
            values[name] = _value(name, text)
        except ValueError as error:
            errors[name if name in ENTRIES else ""] = str(error)
    if errors:
        return PlanForm(typed=typed, question=None, errors=errors)
    question = PlanQuestion(**values)
    errors = _complaint(question)
    return PlanForm(typed=typed, question=None if errors else question, errors=errors)


def _is_left_empty(entry: Entry, given: Mapping[str, str]) -> bool:
    """Whether a field was sent empty that must not be; one that was not sent has its default."""
    return entry.needed and entry.name in given and not given[entry.name].strip()


def _value(name: str, text: str) -> object:
    """What a field's text stands for; raises ValueError with what was expected."""
    entry = ENTRIES.get(name)
    if entry is None:
        raise ValueError(f"there is no field {name[:MOST_CHARACTERS]!r}")
    if entry.options:
        if text not in entry.options:
            raise ValueError(f"one of {', '.join(entry.options)}")
        return text
    expected = f"{'a whole number' if entry.whole else 'a number'} from {entry.least:,} to {entry.most:,.0f}"
    if not text.isascii():
        raise ValueError(expected)
    try:
        value = int(text) if entry.whole else float(text)
    except ValueError:
        raise ValueError(expected) from None
    if not entry.least <= value <= entry.most:
        raise ValueError(expected)
    return value


def _complaint(question: PlanQuestion) -> dict[str, str]:
    """What the campaign file of the question would be refused for, by the field that it is about."""
    try:
        campaign_of(question)
    except InvalidInput as error:
        found = COMPLAINT.match(error.message)
        if found is not None and found[1] in ENTRIES:
            return {found[1]: SECTION.sub("", found[2])}
        return {"": error.message}
    except FrontrunnerError as error:
        return {"": error.message}
    return {}


def shown_values(typed: Mapping[str, str]) -> dict[str, str]:
    """What counts where a field is left empty, as the field shows it; by the presets that were chosen."""
    model = model_preset(_chosen("model", typed, PlanQuestion.model))
    cluster = cluster_preset(_chosen("cluster", typed, PlanQuestion.cluster))
    found = {"kv_heads": "as heads", "ffn_hidden": "4 x hidden", "activation": "gelu", "positions": "rotary"}
    found |= model | cluster | dict(cluster["links"])
    found["tied_embeddings"] = "yes" if model.get("tied_embeddings") else "no"
    found["memory_gib_per_device"] = "the device's"
    return {name: str(found.get(name, "none")) for name in ENTRIES}


def _chosen(preset: str, typed: Mapping[str, str], default: str) -> str:
    name = typed.get(preset, default)
    return name if name in ENTRIES[preset].options else default
