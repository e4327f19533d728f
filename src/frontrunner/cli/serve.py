"""Command that serves the store to browsers and programs: serve."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from frontrunner.cli.options import FILE, store_option
from frontrunner.config.settings import store_url
from frontrunner.spaces.errors import InvalidInput

NEEDED = ("cachetools", "fastapi", "itsdangerous", "jinja2", "prometheus_client", "uvicorn")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8787, show_default=True, help="0 takes a free one.")
@click.option("--allow-host", "allowed", multiple=True, metavar="NAME", help="A host name that requests may use.")
@click.option("--behind-tls", is_flag=True, help="Behind a TLS proxy: https links, secure cookies.")
@click.option("--token-file", type=FILE, metavar="FILE", help="The file of the tokens.")
@click.option("--max-campaigns", type=click.IntRange(1, 1000), default=4, show_default=True, help="Running at once.")
@click.option("--site", "sites", multiple=True, metavar="NAME=FILE", help="Register the nodes of FILE for launches.")
@click.option("--trainer", "trainers", multiple=True, metavar="NAME=FILE", help="Register the command of FILE.")
@click.option("--data", multiple=True, metavar="NAME=FILE", help="Register a training text.")
@click.option("--table", "tables", multiple=True, metavar="NAME=FILE", help="Register measured configurations.")
@store_option
def serve(  # noqa: PLR0913, PLR0917 - an option each
    host: str,
    port: int,
    allowed: tuple[str, ...],
    token_file: Path | None,
    max_campaigns: int,
    sites: tuple[str, ...],
    trainers: tuple[str, ...],
    data: tuple[str, ...],
    tables: tuple[str, ...],
    store: str | None,
    *,
    behind_tls: bool,
) -> None:
    """Serve the store over HTTP: launch, watch and query campaigns from a browser or another machine.

    Listens on this machine only; the link that it prints logs one browser in, once. Drivers that it starts keep running
    when it ends. A launch cannot send nodes, commands and files: it names those registered here by --site, --trainer,
    --data and --table, each of which can be given several times.

    \b
    Examples:
      frontrunner serve --store sweeps.db --port 9000
      frontrunner serve --site frontier=examples/sites/frontier.toml
    """
    if not all(map(find_spec, NEEDED)):
        raise InvalidInput("this needs packages that are not installed", hint="run: pip install 'frontrunner[serve]'")
    from frontrunner.server.app import create_app, listen, run
    from frontrunner.server.auth import Role, default_token_file
    from frontrunner.server.settings import Limits, ServiceSettings, is_loopback, register

    settings = ServiceSettings(
        store=store_url(store),
        token_file=token_file or default_token_file(),
        host=host,
        port=port,
        allowed_hosts=allowed,
        behind_tls=behind_tls,
        limits=Limits(running_campaigns=max_campaigns),
        registered=register({"site": sites, "trainer": trainers, "data": data, "table": tables}),
    )
    with listen(settings) as listener:
        app = create_app(settings)
        code = app.state.service.links.make(Role.OPERATOR)
        port = listener.getsockname()[1]
        click.echo(f"{settings.address(port)}/login?code={code}")
        if settings.behind_tls:
            click.echo(f"listening for the proxy on {settings.listening(port)}", err=True)
        click.echo("the link logs one browser in, once, within ten minutes", err=True)
        click.echo(f"tokens for programs: {settings.token_file}", err=True)
        if not is_loopback(settings.host):
            click.echo(
                "warning: tokens and results cross the network unencrypted unless TLS is in front (docs/service.md)",
                err=True,
            )
        run(app, settings, listener)
