"""What the client has done elsewhere: campaigns planned, launched and told to stop, and recipes replayed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from frontrunner.config.toml_file import Table, read_toml
from frontrunner.results.records import CampaignList
from frontrunner.server.connection import part_of_path
from frontrunner.server.replays import Replay
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.wording import shown

if TYPE_CHECKING:
    from frontrunner.views.shown_plan import ShownPlan

T = TypeVar("T")


class Actions:
    """What `frontrunner.server.client.Client` has a service do, by its own means of asking.

    `campaign`, where it is launched or planned, is a campaign file by its path, or its content as tables.
    """

    def _post(self, kind: type[T], path: str, body: Mapping[str, object]) -> T:
        raise NotImplementedError

    def _get(self, kind: type[T], path: str, **question: object) -> T:
        raise NotImplementedError

    def _of(self, campaign: str | None, rest: str = "") -> str:
        raise NotImplementedError

    def campaigns(self) -> CampaignList:  # noqa: D102 - the client's own
        raise NotImplementedError

    def plan(self, campaign: str | Path | Mapping[str, Any], *, top: int = 10) -> ShownPlan:
        """Estimates of a campaign's recipes by formulas, the `top` fastest of them; nothing is run or kept.

        Raises `InvalidInput` for a campaign that cannot be used and `NothingLegal` for a space without a legal recipe.
        """
        from frontrunner.views.shown_plan import ShownPlan as Shown

        return self._send(Shown, "/plan", campaign, {"top": top})

    def launch(self, campaign: str | Path | Mapping[str, Any], *, name: str | None = None) -> str:
        """Start a campaign on the service's machine and return its name.

        A file that gives its campaign no name gives its own, numbered where the service has it already. Raises
        `InvalidInput` for a campaign that cannot be used; nothing is written then.
        """
        named = self._name(campaign) if name is None else name
        return str(
            self._send(dict[str, Any], "/campaigns", campaign, {} if named is None else {"name": named})["campaign"]
        )

    def _name(self, campaign: str | Path | Mapping[str, Any]) -> str | None:
        """The name that a file gives where it holds none; None where its tables say it, or the service shall."""
        from frontrunner.spaces.names import campaign_name_from
        from frontrunner.starting import free_among

        if isinstance(campaign, Mapping) or "name" in _table(campaign):
            return None
        return free_among({known.name for known in self.campaigns()}, campaign_name_from(Path(campaign).stem))

    def _send(self, kind: type[T], path: str, campaign: str | Path | Mapping[str, Any], more: Table) -> T:
        """A campaign to the service; what is wrong with a file is told with its path, as here."""
        try:
            return self._post(kind, path, {**_table(campaign), **more})
        except InvalidInput as error:
            if isinstance(campaign, Mapping):
                raise
            raise InvalidInput(f"{campaign}: {error.message}", hint=error.hint) from None

    def pause(self, campaign: str) -> None:
        """Let running probes finish, and leave the campaign paused."""
        self._tell(campaign, "pause")

    def resume(self, campaign: str | None = None) -> str:
        """Go on with a campaign wherever it was left, and return its name."""
        return str(self._tell(campaign, "resume")["campaign"])

    def stop(self, campaign: str) -> None:
        """Let running probes finish, and leave the campaign stopped."""
        self._tell(campaign, "stop")

    def cancel(self, campaign: str) -> None:
        """End running probes at once."""
        self._tell(campaign, "cancel")

    def _tell(self, campaign: str | None, word: str) -> dict[str, Any]:
        return self._post(dict[str, Any], self._of(campaign, f"/{word}"), {})

    def replay(self, recipe_id: str, *, steps: int, anyway: bool = False, **settings: float) -> Replay:
        """Start a full training run of a recipe on the service's machine, from the newest checkpoint on.

        `settings` are `learning_rate`, `warm_up_steps`, `evaluate_every` and `checkpoint_every`. It is answered when
        the run has begun; `watch_replay` says how far it is. Raises `InvalidInput` if that machine is not what the
        recipe was measured on, unless `anyway`.
        """
        body = {"recipe_id": recipe_id.strip().lower(), "steps": steps, "anyway": anyway, **settings}
        return self._post(Replay, "/replays", body)

    def replays(self) -> list[Replay]:
        """Every replay that the service has started."""
        return self._get(list[Replay], "/replays")

    def watch_replay(self, recipe_id: str) -> Replay:
        """How far a replay is."""
        return self._get(Replay, f"/replays/{part_of_path(recipe_id)}")

    def stop_replay(self, recipe_id: str) -> Replay:
        """End a replay; its checkpoints stay."""
        return self._post(Replay, f"/replays/{part_of_path(recipe_id)}/stop", {})


def _table(campaign: str | Path | Mapping[str, Any]) -> Table:
    """The tables of a campaign file; raises as the reading of one here does."""
    if isinstance(campaign, Mapping):
        return dict(campaign)
    if isinstance(campaign, str | Path):
        return read_toml(Path(campaign), "campaign file", "examples/laptop.toml is one to begin with")
    raise InvalidInput(f"campaign = {shown(campaign)}: expected a campaign file's path, or its tables")
