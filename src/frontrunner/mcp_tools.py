"""Tools for agents over the Model Context Protocol: plan, query and export and, where allowed,
launch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from frontrunner import api, planning
from frontrunner.remote import RemoteStore
from frontrunner.results.store import open_store
from frontrunner.server.drivers import Drivers
from frontrunner.server.settings import ServiceSettings
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput
from frontrunner.store import LocalStore
from frontrunner.text import to_json
from frontrunner.version import __version__
from frontrunner.views.plan import in_words
from frontrunner.views.presets import presets_by_kind

Table = dict[str, Any]
CampaignGiven = str | Table
"""The path of a campaign file, or its sections."""
MOST_ROWS = 100
READS = ToolAnnotations(read_only_hint=True)
RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=False)
INSTRUCTIONS = """frontrunner finds the fastest way to train a given transformer on given machines. A campaign file
(TOML) has the sections model, cluster and problem (presets lists models and clusters); space, search, budget and probe
are optional. `campaign_file` is its path, or its sections as an object. Begin with plan or advise, which estimate and
run nothing; launch measures by real training and spends the machine's time; status, best and show read results."""  # noqa: E501


def tools_server(store: LocalStore | RemoteStore, *, allow_launch: bool = False) -> MCPServer[Any]:
    """Return the server of the tools over a store or a service; without `allow_launch` none starts
    anything.
    """
    server: MCPServer[Any] = MCPServer(
        "frontrunner", version=__version__, instructions=INSTRUCTIONS
    )
    kinds: list[tuple[object, ToolAnnotations]] = [(Reading(store), READS)]
    kinds += [(Running(store), RUNS)] if allow_launch else []
    for tools, marked in kinds:
        for name in (name for name in vars(type(tools)) if not name.startswith("_")):
            server.tool(annotations=marked, structured_output=False)(
                _answering(getattr(tools, name))
            )
    return server


def _answering(tool: Callable[..., object]) -> Callable[..., str]:
    """Return the tool with JSON text as its result, and messages of ours as its errors."""

    @wraps(tool)
    def answer(*args: Any, **kwargs: Any) -> str:
        try:
            return to_json(tool(*args, **kwargs))
        except FrontrunnerError as error:
            raise ToolError(
                error.message + (f"\nhint: {error.hint}" if error.hint else "")
            ) from None

    return answer


def _rows(top: int) -> int:
    if not 1 <= top <= MOST_ROWS:
        raise InvalidInput(f"top = {top}: expected 1 to {MOST_ROWS}")
    return top


class Reading:
    """Tools that change nothing; each public method is one."""

    def __init__(self, store: LocalStore | RemoteStore) -> None:
        self._store = store

    def presets(self, name: str | None = None) -> object:
        """List the models, clusters and devices that ship; with a name, show that one."""
        found = presets_by_kind(name)
        return (
            found if name is not None else {kind: sorted(tables) for kind, tables in found.items()}
        )

    def space(self, campaign_file: CampaignGiven) -> object:
        """Count the legal and illegal recipes of a campaign's space, with the reasons."""
        surveyed = api.survey(campaign_file)
        refused = [
            {"code": code, "points": n, "example": text}
            for code, n, text in surveyed.refused_by_count()
        ]
        return {
            "points": surveyed.points,
            "legal_recipes": len(surveyed.recipes),
            "refused": refused,
        }

    def plan(self, campaign_file: CampaignGiven, top: int = 10) -> object:
        """Estimate every legal recipe of a campaign, and return the fastest that fit in memory.
        Nothing is run.
        """
        return planning.plan(campaign_file).shown(_rows(top))

    def scaling(self, campaign_file: CampaignGiven, nodes: list[int]) -> object:
        """Estimate strong and weak scaling over numbers of nodes. Nothing is run."""
        return planning.scaling(campaign_file, nodes)

    def advise(self, campaign_file: CampaignGiven) -> object:
        """Recommend a starting configuration for a campaign's model and machines, with the reasons.
        Nothing is run.
        """
        file = campaign_file if isinstance(campaign_file, str) else "FILE"
        found = planning.advise(campaign_file)
        named = {
            "choices": found.choices,
            "lacking": found.lacking,
            "chosen": found.chosen,
            "trust": found.trust,
        }
        return in_words(found, file) | named

    def explain(self, recipe: str | Table, campaign_file: str | None = None) -> object:
        """Break a recipe's estimated step time and memory down.

        `recipe` is a stored id or, with a campaign file, choices such as {"tensor_parallel": 8}
        that leave one recipe.
        """
        return self._store.explain(recipe, campaign=campaign_file)

    def campaigns(self) -> object:
        """List every campaign, the newest first."""
        return self._store.campaigns()

    def status(self, campaign: str | None = None) -> object:
        """Return the state of a campaign (default: the newest): progress, failures, best recipe,
        last events.
        """
        return self._store.status(campaign)

    def best(self, campaign: str | None = None, top: int = 10) -> object:
        """Return a campaign's measured recipes, the fastest first."""
        return self._store.best(campaign, top=_rows(top))

    def show(self, recipe_id: str, campaign: str | None = None) -> object:
        """Return everything known about a recipe: choices, measurements, failures, why it ranks
        there.
        """
        return self._store.show(recipe_id, campaign=campaign)

    def failures(self, campaign: str | None = None) -> object:
        """Return a campaign's failed probes with reasons and the ends of their logs."""
        return self._store.failures(campaign)

    def export(self, recipe_id: str, to: str) -> object:
        """Return a recipe as a file for a tool such as megatron-lm, nemo or slurm; an unknown name
        lists them.
        """
        return self._store.export(recipe_id, to=to)


class Running:
    """Tools that start, continue and end campaigns; each public method is one."""

    def __init__(self, store: LocalStore | RemoteStore) -> None:
        self._store = store

    def launch(self, campaign_file: CampaignGiven) -> object:
        """Start a campaign, whose driver goes on by itself, and return its name; status and best
        follow it.
        """
        if isinstance(self._store, RemoteStore):
            return {"campaign": self._store.launch(campaign_file)}
        with _drivers(self._store, create=True) as drivers:
            return drivers.launch(
                Path(campaign_file) if isinstance(campaign_file, str) else campaign_file
            )

    def resume(self, campaign: str | None = None) -> object:
        """Continue a campaign (default: the one created last) where it stopped, and return its
        name.
        """
        if isinstance(self._store, RemoteStore):
            return {"campaign": self._store.resume(campaign)}
        with _drivers(self._store) as drivers:
            return drivers.resume(campaign or self._store.status(None).campaign.name)

    def end(self, campaign: str, how: Literal["pause", "stop", "cancel"]) -> object:
        """Pause or stop a campaign when its running probes have finished, or cancel it: end them at
        once.
        """
        if isinstance(self._store, RemoteStore):
            getattr(self._store, how)(campaign)
        else:
            with _drivers(self._store) as drivers:
                drivers.tell(campaign, how)
        return {"campaign": campaign, "requested": how}


@contextlib.contextmanager
def _drivers(store: LocalStore, *, create: bool = False) -> Iterator[Drivers]:
    with open_store(store.url, create=create) as found:
        yield Drivers(found, ServiceSettings(store=store.url, token_file=Path()))
