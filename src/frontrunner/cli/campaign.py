"""Commands that run campaigns: launch, resume, space."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner import api
from frontrunner.cli.options import FILE, campaign_argument, json_option, print_json, store_option
from frontrunner.config.settings import DEFAULT_STORE, shown_store, store_url
from frontrunner.spaces.errors import CampaignFailed, NothingLegal
from frontrunner.stop_signals import stopped_by_signals
from frontrunner.store import LocalStore

if TYPE_CHECKING:
    from frontrunner.search.driver import Conclusion

TOP = 10


@click.command()
@click.argument("file", type=FILE)
@click.option("--name", help="The campaign's name [default: the file's `name`, else the file's own name].")
@store_option
@json_option
def launch(file: Path, name: str | None, store: str | None, *, as_json: bool) -> None:
    """Run the campaign in FILE until its budget is used up, and print its ranking.

    The first Ctrl-C lets running probes finish, the second ends them; `frontrunner resume` continues later.

    \b
    Examples:
      frontrunner launch examples/laptop.toml
      frontrunner launch frontier.toml --name 22b-first --store sweeps.db
    """
    from frontrunner.config.campaign import read_campaign_file
    from frontrunner.views.live import make_listener

    campaign = read_campaign_file(file)
    url = store_url(store, from_file=campaign.store.url)
    with make_listener(quiet=as_json) as listener, stopped_by_signals() as on_driver:
        conclusion = api.launch(campaign, store=url, name=name, listener=listener, on_driver=on_driver)
    _finish(conclusion, listener.campaign, url, stopped=on_driver.exit_code, as_json=as_json)


@click.command()
@campaign_argument
@click.option("--take-over", is_flag=True, help="Take the campaign from a driver that still holds it.")
@store_option
@json_option
def resume(campaign: str | None, store: str | None, *, take_over: bool, as_json: bool) -> None:
    """Continue CAMPAIGN (default: the newest) after its driver was stopped, or killed at any moment.

    Nothing that was measured is lost or measured again.

    \b
    Examples:
      frontrunner resume
      frontrunner resume laptop --take-over
    """
    from frontrunner.views.live import make_listener

    with make_listener(quiet=as_json) as listener, stopped_by_signals() as on_driver:
        conclusion = api.resume(campaign, store=store, take_over=take_over, listener=listener, on_driver=on_driver)
    _finish(conclusion, listener.campaign, store, stopped=on_driver.exit_code, as_json=as_json)


@click.command()
@click.argument("file", type=FILE)
@json_option
def space(file: Path, *, as_json: bool) -> None:
    """Count the legal and illegal recipes of FILE's space, with the reasons.

    \b
    Examples:
      frontrunner space examples/laptop.toml
      frontrunner space examples/laptop.toml --json
    """
    surveyed = api.survey(file)
    if as_json:
        refused = [{"code": code, "points": n, "example": text} for code, n, text in surveyed.refused_by_count()]
        counts = {"points": surveyed.points, "legal_recipes": len(surveyed.recipes), "repeats": surveyed.repeats}
        print_json(counts | {"refused": refused, "dimensions": dict(surveyed.dimensions)})
    else:
        from frontrunner.views.campaigns import print_survey

        print_survey(surveyed)
    if not surveyed.recipes:
        raise NothingLegal("no recipe of this space is legal", hint="widen a dimension that the reasons name")


def _finish(conclusion: Conclusion, campaign: str, store: str | None, *, stopped: int, as_json: bool) -> None:
    """Print the ranking and the front, and raise the error of the exit code; `stopped` is that of a requested stop."""
    from frontrunner.results.ranking import Ranking

    found = LocalStore(store)
    several = len(conclusion.objectives) > 1
    ranking = found.best(campaign, top=TOP) if conclusion.measured else Ranking()
    front = found.front(campaign, objectives=conclusion.objectives) if several and ranking else ()
    scale = found.predictions(campaign)
    if as_json:
        document = {"campaign": campaign, "state": conclusion.state, "reason": conclusion.reason, "best": ranking}
        more: dict[str, object] = {"objectives": conclusion.objectives, "front": front} if several else {}
        more |= {} if scale is None else {"small_scale": scale}
        print_json({**document, "outlook": conclusion.outlook, "budget": conclusion.limits, **more})
    else:
        from frontrunner.views import ranking as views

        if scale is not None:
            views.print_predictions(scale)
        if ranking:
            measured = " measured" if ranking[0].figures == "measured" else ""  # the table itself names other sources
            views.print_ranking(ranking, title=f"{campaign}: {conclusion.measured} recipes{measured}")
            if front:
                views.print_front(front, conclusion.objectives)
            views.print_outlook(conclusion.outlook, conclusion.limits)
            named = None if store is None or store == store_url() else shown_store(store)
            views.print_next_commands(
                campaign, ranking[0], named, conclusion.objectives, replays=not conclusion.trainer
            )
    has_result = bool(conclusion.measured) or (scale is not None and bool(scale.predicted))
    _raise_unless_done(conclusion, campaign, store, stopped=stopped, has_result=has_result)


def _raise_unless_done(
    conclusion: Conclusion, campaign: str, store: str | None, *, stopped: int, has_result: bool
) -> None:
    from frontrunner.results.states import CampaignState
    from frontrunner.search.driver import PAUSED_BY_REQUEST

    named = f" --store {shlex.quote(shown_store(store))}" if store and store != DEFAULT_STORE else ""
    command = f"frontrunner resume {campaign}{named}"
    if conclusion.state is CampaignState.STOPPED or conclusion.reason == PAUSED_BY_REQUEST:
        click.echo(f"{conclusion.state}; continue with: {command}", err=True)
        sys.exit(stopped)
    if conclusion.state is CampaignState.PAUSED:
        message, hint = f"campaign {campaign} paused: {conclusion.reason}", f"after fixing the cause, run: {command}"
        failure = conclusion.last_failure
        if failure is not None:
            message = f"{message}\n{failure.message}\n{failure.log_tail}".rstrip()
            hint = hint if failure.log_path is None else f"full log: {failure.log_path}; {hint}"
        raise CampaignFailed(message, hint=hint)
    if not has_result:
        raise NothingLegal(
            f"campaign {campaign} ended without a measured recipe: {conclusion.reason}",
            hint=f"frontrunner failures {campaign}",
        )
