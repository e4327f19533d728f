"""Commands that run: launch, resume, space, replay, serve."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from frontrunner import api, sweeps
from frontrunner.cli import options as opt
from frontrunner.config.campaign import CampaignFile, example_file, read_campaign_file
from frontrunner.config.settings import AT_HAND, located, store_url
from frontrunner.evaluators.programs import command_replay, rank_replay
from frontrunner.evaluators.runs.training import ReplayResult, ReplaySettings
from frontrunner.recipe_actions import plan_command_replay, plan_replay
from frontrunner.results.outcome import Failure
from frontrunner.results.ranking import RankedRecipe, Ranking
from frontrunner.results.states import CampaignState
from frontrunner.search.budget import Limit
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.search.driver import PAUSED_BY_REQUEST, Conclusion
from frontrunner.spaces.batches import useful_batch
from frontrunner.spaces.errors import (
    CampaignFailed,
    InvalidInput,
    JobEnds,
    NotFound,
    NothingLegal,
    StoreUnusable,
    installing,
    require_extra,
)
from frontrunner.stop_signals import INTERRUPTED, noted_signals, stopped_by_signals
from frontrunner.store import LocalStore
from frontrunner.text import counted, percent, seconds, thousands
from frontrunner.views import results as views
from frontrunner.views.around import print_around
from frontrunner.views.live import make_listener
from frontrunner.views.log_sample import print_log_sample

if TYPE_CHECKING:
    from frontrunner.cli.options import Backend

TOP = 10


@click.command()
@click.argument("file", type=opt.FILE, required=False, callback=opt.remember)
@click.option("--example", metavar="NAME", help="Run a campaign file that ships, such as laptop.")
@click.option(
    "--name", help="The campaign's name [default: the file's `name`, else the file's own name]."
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another value of a key. Repeatable.",
)
@click.option(
    "--or-resume", is_flag=True, help="Continue the campaign of this name, if the store has one."
)
@click.option(
    "--check-log",
    type=opt.FILE,
    metavar="LOG",
    help="Only show what the campaign would read from this log of another trainer.",
)
@opt.store_option
@opt.json_option
def launch(  # noqa: PLR0913 - the options of the command
    file: Path | None,
    example: str | None,
    name: str | None,
    changes: tuple[str, ...],
    store: str | None,
    *,
    or_resume: bool,
    check_log: Path | None,
    as_json: bool,
) -> None:
    """Run the campaign in FILE until its budget is used up, and print its ranking.

    --set evaluator=simulated rehearses it anywhere, with --set dispatch={} where FILE has a [dispatch]; --set
    budget.probes=20 and the like change any key of FILE.

    The first Ctrl-C lets running probes finish, the second ends them; `frontrunner resume`
    continues later.
    """  # noqa: E501
    if (file is None) == (example is None):
        raise InvalidInput(
            "expected a campaign FILE or --example NAME", hint="`frontrunner init` writes a file"
        )
    campaign = read_campaign_file(
        file or example_file(example or ""), opt.key_values("--set", changes)
    )
    if check_log is not None:
        sample = api.check_log(campaign, check_log)
        opt.show(sample, print_log_sample, as_json=as_json)
        return
    url = store_url(store, from_file=campaign.store.url)
    if or_resume:
        with suppress(NotFound, StoreUnusable):  # where nothing is there yet
            change = api.changed_since_launch(name or campaign.spec.name, store=url)
            opt.warn([located(change)] if change else [])
            opt.warn(_unused_changes(campaign, name or campaign.spec.name, url))
    with make_listener(quiet=as_json) as listener, stopped_by_signals() as on_driver:
        hooks: Any = {"listener": listener, "on_driver": on_driver}
        conclusion = api.launch(campaign, store=url, name=name, or_resume=or_resume, **hooks)
    if url != store_url():
        click.get_current_context().meta[f"{AT_HAND}store"] = url
    finish(conclusion, listener.campaign, url, stopped=on_driver.exit_code, as_json=as_json)


def _unused_changes(file: CampaignFile, campaign: str, store: str) -> list[str]:
    """Return the warning on values by --set that the campaign which goes on was not launched
    with.
    """
    with LocalStore(store).opened() as found:
        then = {
            key: text for key, (_, text) in stored_spec(found.campaign(campaign)).changes.items()
        }
    unused = [
        f"--set {shlex.quote(f'{key}={text}')}"
        for key, (_, text) in file.changes.items()
        if then.get(key) != text
    ]
    return (
        [f"campaign {campaign} goes on as it was launched; not read: {' '.join(unused)}"]
        if unused
        else []
    )


@click.command()
@opt.campaign_argument
@click.option(
    "--take-over", is_flag=True, help="Take the campaign from a driver that still holds it."
)
@opt.budget_options("of the budget from now on, those that were spent included")
@opt.store_option
@opt.json_option
def resume(
    campaign: str | None,
    store: str | None,
    *,
    take_over: bool,
    as_json: bool,
    **limits: float | None,
) -> None:
    """Continue CAMPAIGN (default: the one created last) after its driver was stopped, or killed at
    any moment.

    Nothing that was measured is lost or measured again. The campaign goes on as it was launched: a
    change of its file is reported and not used, --probes, --minutes, --node-hours and --cost change
    its budget.
    """
    budget = opt.given(limits)
    if change := api.changed_since_launch(campaign, store=store):
        opt.warn([located(change)])
    with make_listener(quiet=as_json) as listener, stopped_by_signals() as on_driver:
        hooks: Any = {"listener": listener, "on_driver": on_driver}
        conclusion = api.resume(campaign, store=store, take_over=take_over, budget=budget, **hooks)
    if more := _more_budget(listener.campaign, conclusion.limits):
        click.echo(located(f"the budget is used up; to go on: {more}"), err=True)
    finish(conclusion, listener.campaign, store, stopped=on_driver.exit_code, as_json=as_json)


@click.command()
@click.argument("recipe", required=False)
@click.option(
    "--confirm", type=int, metavar="N", help="Measure the N best recipes of the ranking again."
)
@click.option("--repeats", type=int, default=1, show_default=True, help="Measurements of each.")
@click.option(
    "--campaign",
    metavar="NAME",
    help="The campaign [default: the recipe's newest; with --confirm the newest].",
)
@opt.store_option
@opt.json_option
def measure(store: str | None, *, as_json: bool, **asked: Any) -> None:
    """Measure RECIPE again, or for the first time, or the best ones, and rank them with all their
    measurements.

    RECIPE is an id of a campaign's space, or the path of a recipe file. What it takes is charged to
    the campaign's budget, which does not limit it.
    """
    with make_listener(quiet=as_json) as listener, stopped_by_signals() as on_driver:
        conclusion = api.measure(**asked, store=store, listener=listener, on_driver=on_driver)
    campaign = listener.campaign
    ranking = LocalStore(store).best(campaign, top=TOP) if conclusion.measured else Ranking()
    if as_json:
        document = {
            "campaign": campaign,
            "state": conclusion.state,
            "reason": conclusion.reason,
            "best": ranking,
        }
        opt.print_json(document | {"unmade": conclusion.unmade})
    elif ranking:
        views.print_ranking(ranking, title=_title(campaign, conclusion, ranking))
    if not conclusion.unmade:
        return
    what = f"campaign {campaign}: {conclusion.reason}"
    if on_driver.were_received:
        click.echo(what, err=True)
        sys.exit(on_driver.exit_code)
    if conclusion.job_ends:
        raise JobEnds(what, hint="measure again in another job")
    raise _failed(what, conclusion.last_failure, "fix the cause, then measure again")


def _title(campaign: str, conclusion: Conclusion, ranking: Ranking) -> str:
    measured = (
        " measured" if ranking[0].figures == "measured" else ""
    )  # the table itself names other sources
    return f"{campaign}: {counted(conclusion.measured, 'recipe')}{measured}"


def _failed(message: str, failure: Failure | None, hint: str) -> CampaignFailed:
    if failure is not None:
        message = f"{message}\n{failure.message}\n{failure.log_tail}".rstrip()
        hint = hint if failure.log_path is None else f"full log: {failure.log_path}; {hint}"
    return CampaignFailed(message, hint=hint)


@click.command()
@opt.campaign_argument
@opt.budget_options("of the budget from now on, those that were spent included")
@click.option("--add", is_flag=True, help="Add what is given to the limits.")
@opt.backend_options
@opt.json_option
def budget(
    campaign: str | None, backend: Backend, *, add: bool, as_json: bool, **limits: float | None
) -> None:
    """Print what CAMPAIGN has spent of its budget, or change its limits.

    A running driver goes by the change within seconds; one that has ended goes on by `frontrunner
    resume`.
    """
    found = backend.change_budget(campaign, opt.given(limits), add=add)
    opt.show(found, _print_limits, as_json=as_json)
    if more := _more_budget(backend.status(campaign).campaign.name, found):
        click.echo(located(f"used up; to go on: {more}"), err=True)


def _print_limits(found: Sequence[Limit]) -> None:
    for limit in found:
        click.echo(str(limit))
    if not found:
        click.echo("no limit")


def _more_budget(campaign: str, limits: Sequence[Limit]) -> str:
    """Return the command that goes on with the least whole limits that are not used up; empty for
    another budget.

    Measurements made again by `measure` may have taken more than the budget.
    """
    used_up = [limit for limit in limits if limit.used >= limit.allowed]
    options = "".join(f" --{limit.name} {math.floor(limit.used) + 1}" for limit in used_up)
    return options and f"frontrunner resume {campaign}{options}"


@click.command()
@opt.file_argument
@opt.json_option
def space(file: Path, *, as_json: bool) -> None:
    """Count the legal and illegal recipes of FILE's space, with the reasons."""
    surveyed = api.survey(file)
    if as_json:
        refused = [
            {"code": code, "points": n, "example": text}
            for code, n, text in surveyed.refused_by_count()
        ]
        counts: dict[str, int | None] = {
            "points": surveyed.points,
            "legal_recipes": len(surveyed.recipes),
            "repeats": surveyed.repeats,
        }
        counts["useful_global_batch"] = useful_batch(surveyed)
        opt.print_json(counts | {"refused": refused, "dimensions": dict(surveyed.dimensions)})
    else:
        views.print_survey(surveyed)
    if not surveyed.recipes:
        raise NothingLegal(
            "no recipe of this space is legal", hint="change a value that the reasons name"
        )


def finish(
    conclusion: Conclusion, campaign: str, store: str | None, *, stopped: int, as_json: bool
) -> None:
    """Print the ranking and the front, or what is around a recipe, and raise the error of the exit
    code.

    `stopped` is the code of a requested stop.
    """
    found = LocalStore(store)
    several = len(conclusion.objectives) > 1
    ranking = found.best(campaign, top=TOP) if conclusion.measured else Ranking()
    front = found.front(campaign, objectives=conclusion.objectives) if several and ranking else ()
    around = sweeps.measured(campaign, store=store)
    status = found.status(campaign)
    if as_json:
        document = {
            "campaign": campaign,
            "state": conclusion.state,
            "reason": conclusion.reason,
            "best": ranking,
            "left_ranking": status.left_ranking,
        }
        more: dict[str, object] = (
            {"objectives": conclusion.objectives, "front": front} if several else {}
        )
        more |= {} if around is None else {"around": around}
        opt.print_json(
            {**document, "outlook": conclusion.outlook, "budget": conclusion.limits, **more}
        )
    elif around is not None:
        print_around(around)
    elif ranking:
        views.print_ranking(ranking, title=_title(campaign, conclusion, ranking))
        views.print_left_ranking(status)
        if front:
            views.print_front(front, conclusion.objectives)
        views.print_outlook(conclusion.outlook, conclusion.limits)
        by_command = conclusion.trainer[:1] == ("command",)
        replays = by_command or (
            not conclusion.trainer and _replays_here(found, campaign, ranking[0])
        )
        elsewhere = (
            sum(row.standing is not None for row in found.show(ranking[0].recipe_id).appearances)
            > 1
        )
        views.print_next_commands(
            campaign, ranking[0], conclusion.objectives, replays=replays, elsewhere=elsewhere
        )
    _raise_unless_done(conclusion, campaign, stopped=stopped)


def _replays_here(found: LocalStore, campaign: str, winner: RankedRecipe) -> bool:
    """Return whether `replay` can run the recipe from here: on this machine, or on nodes that it
    requests.
    """
    with found.opened() as store:
        spec = stored_spec(store.campaign(campaign))
    is_here = winner.recipe.devices <= spec.problem.cluster.devices_per_node
    return winner.figures == "measured" and (is_here or spec.dispatch.backend is not None)


def _raise_unless_done(conclusion: Conclusion, campaign: str, *, stopped: int) -> None:
    command = f"frontrunner resume {campaign}"
    if conclusion.job_ends:
        raise JobEnds(
            f"campaign {campaign} stopped: {conclusion.reason}", hint=f"in another job: {command}"
        )
    if conclusion.state is CampaignState.STOPPED or conclusion.reason == PAUSED_BY_REQUEST:
        click.echo(
            located(f"campaign {campaign} {conclusion.state}; continue with: {command}"), err=True
        )
        sys.exit(stopped)
    if conclusion.state is CampaignState.PAUSED:
        message = f"campaign {campaign} paused: {conclusion.reason}"
        raise _failed(message, conclusion.last_failure, f"fix the cause, then: {command}")
    if not conclusion.measured:
        raise NothingLegal(
            f"campaign {campaign} has no measured recipe: {conclusion.reason}",
            hint=f"frontrunner failures {campaign}",
        )


STEPS = click.IntRange(1, 1_000_000_000)
PRINTED_STEPS = 20


@click.command()
@click.argument("recipe_id")
@click.option("--steps", type=STEPS, required=True, help="Optimizer steps of the whole run.")
@click.option(
    "--data",
    metavar="FILE",
    help=(
        "Train on FILE, on [data] of FILE.toml, or on `built-in` text [default: the campaign's"
        " data]."
    ),
)
@click.option(
    "--campaign",
    metavar="NAME",
    help="Train as this campaign did [default: the newest that measured it].",
)
@click.option(
    "--learning-rate", type=float, help="The highest learning rate [default: the campaign's]."
)
@click.option("--warm-up-steps", type=click.IntRange(0, STEPS.max), help="[default: 10]")
@click.option(
    "--evaluate-every",
    "evaluation_every_steps",
    type=STEPS,
    default=50,
    show_default=True,
    metavar="STEPS",
)
@click.option(
    "--checkpoint-every",
    "checkpoint_every_steps",
    type=STEPS,
    metavar="STEPS",
    help="[default: a tenth of the run]",
)
@click.option(
    "--metrics",
    default="csv",
    show_default=True,
    help="csv, tensorboard or wandb, in the replay's folder.",
)
@click.option("--folder", type=opt.FILE, help="Where it keeps its files [default: by recipe].")
@click.option(
    "--restarts",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    help="Most failures in a row, without a new checkpoint, that it is started again after.",
)
@click.option(
    "--stop-margin",
    "stop_margin_s",
    type=float,
    metavar="SECONDS",
    help=(
        "Stop so long before the job's end, with a checkpoint [default: by checkpoints' own time;"
        " of a command 60]."
    ),
)
@click.option(
    "--walltime",
    metavar="HH:MM:00",
    help="Of allocations [default: the campaign's dispatch.walltime].",
)
@opt.anyway_option
@click.option(
    "--print-command",
    "launched",
    is_flag=True,
    help="Write the job file, print the command that would run with it, and run nothing.",
)
@opt.store_option
@opt.json_option
def replay(
    recipe_id: str,
    campaign: str | None,
    store: str | None,
    *,
    anyway: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train with RECIPE_ID, a stored recipe or the path of a recipe file.

    One of another trainer is trained by its campaign's command, to which --steps, --folder,
    --restarts, --walltime and
    --stop-margin apply. Others train on their campaign's data, and are refused where it has changed.

    Run again after a kill, it continues from the newest checkpoint. At the end its throughput is
    compared with the probe's.
    """  # noqa: E501
    chosen = ReplaySettings(**settings)  # the options are named after its fields
    if (
        command := plan_command_replay(recipe_id, chosen, campaign=campaign, store=store)
    ) is not None:
        click.echo(
            f"replaying {command.recipe_id} by its campaign's command in {command.folder}", err=True
        )
        try:
            with noted_signals() as signals:
                done = command_replay.run(command, _printer(chosen.steps), signals)
        except KeyboardInterrupt:
            click.echo(
                "stopped; run again, the command is started to go on from its own checkpoint",
                err=True,
            )
            sys.exit(INTERRUPTED)
        opt.show(done, _print_of_command, as_json=as_json)
        return
    planned = plan_replay(recipe_id, chosen, campaign=campaign, store=store, anyway=anyway)
    what = f"{planned.recipe_id} on {planned.setup.data} in {planned.folder}"
    if chosen.launched:
        rank_replay.prepare(planned)
        click.echo(f"to replay {what}:", err=True)
        click.echo(planned.command)
        return
    opt.warn(planned.differences)
    click.echo(f"replaying {what}", err=True)
    try:
        with noted_signals() as signals:
            result = rank_replay.run(planned, _printer(chosen.steps), signals)
    except KeyboardInterrupt:
        click.echo(
            "stopped; the same command continues from the newest checkpoint, if there is one",
            err=True,
        )
        sys.exit(INTERRUPTED)
    opt.show(result, _print, as_json=as_json)


def _print(result: ReplayResult) -> None:
    idle = f"already trained to step {result.final_step}; a larger --steps continues"
    _print_figures(result, idle=idle, sustained="with evaluations and checkpoints")
    click.echo(f"metrics, checkpoints and log: {result.folder}")


def _print_of_command(result: ReplayResult) -> None:
    idle = "the command ended with status 0, and its last start logged too few steps to measure"
    _print_figures(
        result, idle=idle, sustained="from the first step that its last start logged to the last"
    )
    click.echo(f"logs: {result.folder / 'starts'}")


def _print_figures(result: ReplayResult, *, idle: str, sustained: str) -> None:
    if result.tokens_per_s is None or result.sustained_tokens_per_s is None:
        click.echo(idle)
        return
    compared = "no probe measured this recipe: its campaign was simulated"
    if result.measured_tokens_per_s is not None:
        probe, ratio = thousands(result.measured_tokens_per_s), percent(result.ratio_to_probe)
        compared = f"the probe measured {probe} ({ratio} of it)"
    loss = "-" if result.final_loss is None else f"{result.final_loss:.4f}"
    click.echo(f"trained to step {result.final_step}, loss {loss}")
    click.echo(f"throughput {thousands(result.tokens_per_s)} tokens/s; {compared}")
    click.echo(f"sustained {thousands(result.sustained_tokens_per_s)} tokens/s, {sustained}")


def _printer(steps: int) -> Callable[[Mapping[str, Any]], None]:
    every = max(1, steps // PRINTED_STEPS)

    def on_event(event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "step" and (event["step"] % every == 0 or event["step"] in (1, steps)):
            known = event.get("loss", math.nan)  # another trainer's log may have none
            loss = "not finite" if known is None else "-" if math.isnan(known) else f"{known:.4f}"
            click.echo(
                f"step {event['step']:>6} of {steps}  loss {loss}  {seconds(event['time_s'])}",
                err=True,
            )
        elif kind not in ("step", "built"):
            fields = {
                key: f"{value:.4f}" if isinstance(value, float) else value
                for key, value in event.items()
            }
            words = (f"{key} {value}" for key, value in fields.items() if key != "event")
            click.echo("  ".join([kind, *words]), err=True)

    return on_event


NEEDED = ("cachetools", "fastapi", "itsdangerous", "jinja2", "prometheus_client", "uvicorn")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8787,
    show_default=True,
    help="0 takes a free one.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A host name that requests may use.",
)
@click.option("--behind-tls", is_flag=True, help="Behind a TLS proxy: https links, secure cookies.")
@click.option("--token-file", type=opt.FILE, metavar="FILE", help="The file of the tokens.")
@click.option(
    "--max-campaigns",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="Running at once.",
)
@click.option(
    "--site", multiple=True, metavar="NAME=FILE", help="Register the nodes of FILE for launches."
)
@click.option("--trainer", multiple=True, metavar="NAME=FILE", help="Register the command of FILE.")
@click.option("--data", multiple=True, metavar="NAME=FILE", help="Register a training text.")
@click.option(
    "--table", multiple=True, metavar="NAME=FILE", help="Register measured configurations."
)
@opt.store_option
def serve(store: str | None, token_file: Path | None, max_campaigns: int, **given: Any) -> None:
    """Serve the store over HTTP: launch, watch and query campaigns from a browser or another
    machine.

    Listens on this machine only; the link that it prints logs one browser in, once. Drivers that it
    starts keep running when it ends. A launch cannot send nodes, commands and files: it names those
    registered here by --site, --trainer,
    --data and --table, each of which can be given several times.
    """
    if not all(map(find_spec, NEEDED)):
        missing = ", ".join(name for name in NEEDED if find_spec(name) is None)
        hint = f"run: {installing('frontrunner[serve]')}"
        raise InvalidInput(
            f"the service needs packages that are not installed: {missing}", hint=hint
        )
    from frontrunner.server.app import create_app, listen, run
    from frontrunner.server.auth import TOKEN_FILE_VARIABLE, default_token_file, owner
    from frontrunner.server.settings import KINDS, Limits, ServiceSettings, is_loopback, register

    registered = register({kind: given.pop(kind) for kind in KINDS})
    settings = ServiceSettings(
        store=store_url(store),
        token_file=token_file or default_token_file(),
        limits=Limits(running_campaigns=max_campaigns),
        registered=registered,
        **given,  # the other options are named after fields
    )
    with listen(settings) as listener:
        app = create_app(settings)
        code = app.state.service.links.make(owner())
        port = listener.getsockname()[1]
        click.echo(f"{settings.address(port)}/login?code={code}")
        if settings.behind_tls:
            click.echo(f"listening for the proxy on {settings.listening(port)}", err=True)
        click.echo("the link logs one browser in, once, within ten minutes", err=True)
        click.echo(f"tokens for programs: {settings.token_file}", err=True)
        named = (
            ""
            if token_file is None
            else f"{TOKEN_FILE_VARIABLE}={shlex.quote(str(token_file.absolute()))} "
        )
        invite = located(f"{named}frontrunner users add NAME --server {settings.here(port)}")
        click.echo(f"to let others in: {invite}", err=True)
        if not is_loopback(settings.host):
            click.echo(
                "warning: tokens and results cross the network unencrypted unless TLS is in front"
                " (docs/service.md)",
                err=True,
            )
        run(app, settings, listener)


@click.command()
@click.option(
    "--allow-launch", is_flag=True, help="Offer tools that launch, resume and end campaigns, too."
)
@opt.backend_options
def mcp(backend: Backend, *, allow_launch: bool) -> None:
    """Serve tools for agents over stdin and stdout (the Model Context Protocol), until the client
    closes them.

    They plan, advise, explain and export, and read the store or the service; without --allow-launch
    none starts or changes anything. docs/agents.md has the client's settings.
    """
    require_extra("mcp", "mcp", "serving agents")
    from frontrunner.mcp_tools import tools_server

    tools_server(backend, allow_launch=allow_launch).run()
