"""The commands that run campaigns: launch, resume, space."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from frontrunner import api
from frontrunner.cli.options import json_option, print_json, store_option
from frontrunner.config.settings import shown_store, store_url
from frontrunner.spaces.errors import CampaignFailed, NothingLegal
from frontrunner.stop_signals import stopped_by_signals
from frontrunner.store import LocalStore

if TYPE_CHECKING:
    from frontrunner.search.driver import Conclusion

TOP = 10


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="The campaign's name [default: the file's `name`, else the file's own name].")
@store_option
@json_option
def launch(file: Path, name: str | None, store: str | None, *, as_json: bool) -> None:
    """Run the campaign in FILE until its budget is used up, and print its ranking.

    The first Ctrl-C lets running probes finish, the second ends them; `frontrunner resume` goes on later.

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
@click.argument("campaign", required=False)
@click.option("--take-over", is_flag=True, help="Take the campaign from a driver that still holds it.")
@store_option
@json_option
def resume(campaign: str | None, store: str | None, *, take_over: bool, as_json: bool) -> None:
    """Go on with CAMPAIGN (default: the newest) after its driver was stopped, or killed at any moment.

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
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def space(file: Path, *, as_json: bool) -> None:
    """Print how many recipes FILE's space has, how many are legal, and why the others are not.

    \b
    Examples:
      frontrunner space examples/laptop.toml
      frontrunner space examples/laptop.toml --json
    """
    surveyed = api.survey(file)
    if as_json:
        refused = [
            {"code": code, "points": count, "example": text} for code, count, text in surveyed.refused_by_count()
        ]
        print_json(
            {
                "points": surveyed.points,
                "legal_recipes": len(surveyed.recipes),
                "repeats": surveyed.repeats,
                "refused": refused,
                "dimensions": dict(surveyed.dimensions),
            }
        )
    else:
        from frontrunner.views.campaigns import print_survey

        print_survey(surveyed)
    if not surveyed.recipes:
        raise NothingLegal("no recipe of this space is legal", hint="widen a dimension that the reasons name")


def _finish(conclusion: Conclusion, campaign: str, store: str | None, *, stopped: int, as_json: bool) -> None:
    """Print the ranking, and the front of several objectives; raise what the end means for the exit code.

    `stopped` is the exit code of a campaign that was stopped or paused by request.
    """
    from frontrunner.pareto_front import Front
    from frontrunner.results.ranking import Ranking

    questions = LocalStore(store)
    ranking = questions.best(campaign, top=TOP) if conclusion.measured else Ranking()
    several = len(conclusion.objectives) > 1
    found = questions.front(campaign, objectives=conclusion.objectives) if several and ranking else Front()
    scale = questions.predictions(campaign)
    if as_json:
        answer = {"campaign": campaign, "state": conclusion.state, "reason": conclusion.reason, "best": ranking}
        answer_on_front = {"objectives": conclusion.objectives, "front": found} if several else {}
        small = {} if scale is None else {"small_scale": scale}
        print_json(answer | {"outlook": conclusion.outlook, "budget": conclusion.limits} | answer_on_front | small)
        ranking = Ranking()
    elif scale is not None:
        from frontrunner.views.ranking import print_predictions

        print_predictions(scale)
    if ranking:
        from frontrunner.views.ranking import print_next_commands, print_outlook, print_ranking

        measured = " measured" if ranking[0].figures == "measured" else ""  # the table says itself what else they are
        print_ranking(ranking, title=f"{campaign}: {conclusion.measured} recipes{measured}")
        if found:
            from frontrunner.views.ranking import print_front

            print_front(found, conclusion.objectives)
        print_outlook(conclusion.outlook, conclusion.limits)
        named = None if store is None or store == store_url() else shown_store(store)
        print_next_commands(campaign, ranking[0], named, conclusion.objectives, replays=not conclusion.trainer)
    is_predicted = scale is not None and bool(scale.predicted)
    has_answer = bool(conclusion.measured) or is_predicted
    _raise_unless_done(conclusion, campaign, store, stopped=stopped, has_answer=has_answer)


def _raise_unless_done(
    conclusion: Conclusion, campaign: str, store: str | None, *, stopped: int, has_answer: bool
) -> None:
    from frontrunner.config.settings import DEFAULT_STORE
    from frontrunner.results.states import CampaignState
    from frontrunner.search.driver import PAUSED_BY_REQUEST

    command = f"frontrunner resume {campaign}" + (
        f" --store {shlex.quote(shown_store(store))}" if store and store != DEFAULT_STORE else ""
    )
    if conclusion.state is CampaignState.STOPPED or conclusion.reason == PAUSED_BY_REQUEST:
        click.echo(f"{conclusion.state}; go on with: {command}", err=True)
        sys.exit(stopped)
    if conclusion.state is CampaignState.PAUSED and conclusion.last_failure is not None:
        failure = conclusion.last_failure
        log = "" if failure.log_path is None else f"the whole log: {failure.log_path}; "
        raise CampaignFailed(
            f"campaign {campaign} paused: {conclusion.reason}\n{failure.message}\n{failure.log_tail}".rstrip(),
            hint=f"{log}once mended: {command}",
        )
    if conclusion.state is CampaignState.PAUSED:
        raise CampaignFailed(f"campaign {campaign} paused: {conclusion.reason}", hint=f"once mended: {command}")
    if not has_answer:
        raise NothingLegal(
            f"campaign {campaign} ended without one measured recipe: {conclusion.reason}",
            hint=f"frontrunner failures {campaign}",
        )
