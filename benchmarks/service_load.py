"""How fast the service answers many clients over a large store, while a driver writes to it.

    python benchmarks/service_load.py [--campaigns 100] [--measurements 100000] [--clients 20] [--seconds 15]

Builds a store, serves it from a process of its own, has another write 50 outcomes a second to one more campaign, and
asks from as many clients at once, each one question after the other without a pause: of the API, and pages, live ones
as if all of their parts had changed. Prints the median and the 99th percentile of each question, what the driver wrote
and what the store holds of it, and what an idle live stream costs.
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import insert
from store_queries import rows, sample

from frontrunner.campaign_file import parse_campaign
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.service.app import create_app
from frontrunner.service.pages.router import router
from frontrunner.service.server import listen, run
from frontrunner.service.settings import Limits, ServiceSettings
from frontrunner.service.tokens import make_tokens
from frontrunner.spaces.recipe import Recipe
from frontrunner.validation import dump_json

OUTCOMES_PER_S = 50
WARM_UP_S = 2.0
API = "/api/v1"
CAMPAIGN = {
    "model": {"preset": "frontier-22b"},
    "cluster": {"preset": "frontier", "nodes": 1},
    "problem": {"sequence_length": 2048, "global_batch": 32},
    "space": {"tensor_parallel": [2], "micro_batch_seqs": [1, 2, 4, 8]},
    "budget": {"probes": 100_000},
}


def spec_json(name: str) -> str:
    """What the store keeps of a campaign file, as its page reads it."""
    return dump_json(parse_campaign(CAMPAIGN, default_name=name, base=Path()).spec)


def build(path: Path, campaigns: int, measurements: int) -> str:
    """A store of so many campaigns of equal size; returns a recipe that each of them has."""
    each = measurements // campaigns
    with open_store(str(path)) as store:
        for place in range(campaigns):
            name = f"c{place}"
            made = store.create_campaign(name=name, spec_json=spec_json(name), legal_recipes=each, problem_summary={})
            for tables in rows(made.id, each, 1):
                with store.database.write() as connection:
                    for table, values in tables.items():
                        connection.execute(insert(table), [moved(value, place, each) for value in values])
        with store.database.read() as connection:
            recipe: str = connection.exec_driver_sql("SELECT recipe_id FROM trials LIMIT 1").scalar_one()
    return recipe


def moved(row: dict[str, Any], place: int, each: int) -> dict[str, Any]:
    """A row of `store_queries` with ids of its own; of two campaigns that follow one another the recipes are shared."""
    ids = {key: value + place * each for key, value in row.items() if key in IDS}
    recipe = {"recipe_id": f"{place // 2:02x}{row['recipe_id'][2:]}"} if "recipe_id" in row else {}
    return row | ids | recipe


IDS = {"id", "trial_id", "attempt_id"}


def serve(folder: Path) -> None:
    settings = ServiceSettings(
        store=str(folder / "load.db"),
        token_file=folder / "tokens.json",
        port=0,
        limits=Limits(requests_per_s=1e9, request_burst=10**9),
    )
    with listen(settings) as listener:
        (folder / "port").write_text(str(listener.getsockname()[1]))
        run(create_app(settings, pages=(router,)), settings, listener)


def drive(path: Path, seconds: float) -> None:
    """Write outcomes at a steady rate, as a driver does, and print how many and how late the latest was."""
    dice, written, latest_s = random.Random(1), 0, 0.0
    with open_store(str(path)) as store:
        campaign = store.create_campaign(
            name="driven", spec_json=spec_json("driven"), legal_recipes=1, problem_summary={}
        )
        lease = store.acquire_lease(campaign.id, host=socket.gethostname(), pid=os.getpid(), duration_s=3600)
        writer = store.drive(lease)
        writer.set_state(CampaignState.RUNNING, reason="")
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            if written > now * OUTCOMES_PER_S:
                time.sleep(written / OUTCOMES_PER_S - now)
                continue
            latest_s = max(latest_s, now - written / OUTCOMES_PER_S)
            recipe = Recipe(devices=8, tensor_parallel=2, micro_batch_seqs=written + 1, accumulation=4)
            with writer.together():
                attempt = writer.start_attempt(writer.propose(f"{written:012x}", recipe), run_folder=f"runs/{written}")
            with writer.together():
                writer.finish_attempt(attempt, sample(dice), retry=False)
                writer.event("outlook", expected_improvement=0.1, measured=written)
            written += 1
    print(f"{written} {latest_s:.3f}")


def questions(recipe: str) -> list[str]:
    campaigns = [
        f"{API}/campaigns/c7{rest}"
        for rest in (
            "",
            "/best",
            "/best?by=memory&top=50",
            "/pareto",
            "/recipes?tensor_parallel=2&page=3",
            "/trials?page=9",
        )
    ]
    whole = [f"{API}/campaigns", f"{API}/compare?first=c2&second=c3", f"{API}/recipes/{recipe}", "/metrics", "/healthz"]
    driven = [f"{API}/campaigns/driven", f"{API}/campaigns/driven/best"]
    pages = ["/", "/compare", "/campaigns/c7", "/campaigns/driven", "/campaigns/driven/live?seen=earlier~0"]
    return [*campaigns, *whole, *driven, *pages]


def client(port: int, token: str, asked: list[str], until: float, times_s: dict[str, list[float]]) -> None:
    """Ask one question after the other until the time is over."""
    dice = random.Random(threading.get_ident())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {token}"}
    while time.monotonic() < until:
        question = dice.choice(asked)
        began = time.perf_counter()
        connection.request("GET", question, headers=headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{question}: {answer.status}")
        times_s[question].append(time.perf_counter() - began)
    connection.close()


def load(port: int, token: str, asked: list[str], clients: int, seconds: float) -> dict[str, list[float]]:
    times_s: dict[str, list[float]] = defaultdict(list)
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=client, args=(port, token, asked, until, times_s)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times_s


def stream_cost(port: int, token: str, server: psutil.Process, seconds: float) -> float:
    """The share of a core that the service needs while one client follows a campaign in which nothing happens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"{API}/campaigns/driven/events", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    while not answer.readline().startswith(b"event: state"):
        pass
    before_s = processor_s(server)
    time.sleep(seconds)
    spent_s = processor_s(server) - before_s
    connection.close()
    return spent_s / seconds


def processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def show(times_s: dict[str, list[float]], seconds: float) -> None:
    for question, found in sorted(times_s.items()):
        found.sort()
        p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
        print(
            f"{question:62s} {len(found):6d}  median {1e3 * statistics.median(found):6.1f} ms  p99 {1e3 * p99:6.1f} ms"
        )
    print(f"{sum(map(len, times_s.values())) / seconds:.0f} answers a second")


def wait_for_driver(path: Path) -> None:
    with open_store(str(path), create=False, read_only=True) as store:
        while "driven" not in {campaign.name for campaign in store.campaigns()}:
            time.sleep(0.1)


def measure(folder: Path, options: argparse.Namespace, recipe: str) -> None:
    me = [sys.executable, __file__, "--folder", str(folder)]
    server = subprocess.Popen([*me, "--part", "serve"])
    try:
        while not (folder / "port").exists():
            time.sleep(0.1)
        port, token = int((folder / "port").read_text()), make_tokens(folder / "tokens.json").operator
        seconds = options.seconds + WARM_UP_S + 1.0
        driver = subprocess.Popen(
            [*me, "--part", "drive", "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True
        )
        wait_for_driver(folder / "load.db")
        asked = questions(recipe)
        load(port, token, asked, options.clients, WARM_UP_S)
        process = psutil.Process(server.pid)
        before_s = processor_s(process)
        times_s = load(port, token, asked, options.clients, options.seconds)
        spent_s = processor_s(process) - before_s
        show(times_s, options.seconds)
        each_ms = 1e3 * spent_s / sum(map(len, times_s.values()))
        print(f"an answer takes {each_ms:.1f} ms of processor time; with a core of its own the service would answer")
        print(f"{options.clients} clients who never pause after {options.clients * each_ms:.0f} ms each")
        written, latest_s = driver.communicate()[0].split()
        with open_store(str(folder / "load.db"), create=False, read_only=True) as store:
            kept = store.campaign("driven").outcomes
        print(f"the driver wrote {written} outcomes, at most {latest_s} s late; the store holds {kept}")
        cost = stream_cost(port, token, psutil.Process(server.pid), 10.0)
        print(f"a stream in which nothing happens costs {100 * cost:.2f} % of a core")
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=100)
    parser.add_argument("--measurements", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=("serve", "drive"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "serve":
        serve(options.folder)
    elif options.part == "drive":
        drive(options.folder / "load.db", options.seconds)
    else:
        with tempfile.TemporaryDirectory() as name:
            recipe = build(Path(name) / "load.db", options.campaigns, options.measurements)
            measure(Path(name), options, recipe)


if __name__ == "__main__":
    main()
