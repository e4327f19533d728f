"""Child process of the service: report on one line what it starts, then run it.

    python -P -m frontrunner.server.child launch [FILE] | resume CAMPAIGN | replay

The request's body, of a launch without a file its sections, is on stdin. The report, or an error,
is the only line on stdout; the rest is a log on stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from frontrunner import api
from frontrunner.evaluators.runs.files import write_json
from frontrunner.results.records import timestamp, utc_now
from frontrunner.results.states import CampaignState
from frontrunner.search.listener import View
from frontrunner.server.errors import to_problem
from frontrunner.spaces.errors import FrontrunnerError
from frontrunner.stop_signals import noted_signals, stopped_by_signals
from frontrunner.views.live import Lines


class Reporting(Lines):
    """Listener that reports once the driver holds the campaign; before that another driver may
    refuse it.
    """

    def __init__(self) -> None:
        self._has_reported = False

    def report(self, table: Mapping[str, object]) -> None:
        """Write the one line to the service, which may be gone by then; later output goes to the
        log.
        """
        if not self._has_reported:
            self._has_reported = True
            with contextlib.suppress(BrokenPipeError):
                os.write(sys.stdout.fileno(), json.dumps(table).encode() + b"\n")
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def began(self, view: View) -> None:
        """Report the campaign's name."""
        super().began(view)
        self.report({"campaign": view.name})

    def ended(self, view: View, state: CampaignState, reason: str) -> None:
        """Report a campaign that was paused, for lack of nodes, before it began."""
        sys.stderr.write(f"campaign {view.name} {state}: {reason}\n")
        self.report({"campaign": view.name})


def main(arguments: list[str]) -> int:
    """Run one action; the exit status is that of the command of the same name."""
    from frontrunner.evaluators.programs.rank_replay import run
    from frontrunner.evaluators.runs.training import ReplaySettings
    from frontrunner.recipe_actions import plan_replay
    from frontrunner.server.drivers import STARTED, recording_end

    listener = Reporting()
    try:
        body = json.load(sys.stdin)
        if arguments == ["replay"]:
            anyway, root = body.pop("anyway"), Path(body.pop("root"))
            recipe_id = api.show(body.pop("recipe_id")).recipe_id
            settings = ReplaySettings(**body, folder=root / recipe_id)
            planned = plan_replay(recipe_id, settings, anyway=anyway)
            planned.folder.mkdir(parents=True, exist_ok=True)
            started = {"pid": os.getpid(), "since": timestamp(utc_now()), "steps": settings.steps}
            write_json(planned.folder / STARTED, started)
            with recording_end(planned.folder / STARTED, started), noted_signals() as signals:
                listener.report({"recipe_id": recipe_id})
                run(planned, signals=signals)
            return 0
        with stopped_by_signals() as on_driver:
            if arguments[0] == "launch":
                campaign = Path(arguments[1]) if arguments[1:] else body
                api.launch(campaign, listener=listener, on_driver=on_driver)
            else:
                api.resume(arguments[1], listener=listener, on_driver=on_driver)
    except FrontrunnerError as error:
        sys.stderr.write(f"error: {error.message}\n")
        listener.report({"error": to_problem(error)})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
