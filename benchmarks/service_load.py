"""How fast the service answers many clients over a large store, while a driver writes to it.

    python benchmarks/service_load.py [--campaigns 100] [--measurements 100000] [--clients 20]
    [--seconds 15]

Builds a store, serves it from a process of its own, has another write 50 outcomes a second to one
more campaign, and asks from as many clients at once, each one question after the other without a
pause: of the API, and pages, live ones as if all of their parts had changed. Prints the median and
the 99th percentile of each question, the processor time of the service and of the clients, what the
driver wrote and what the store holds of it. Then asks one question at a time: the processor time
that the service needs for an answer depends least on what else the machine does. Beside that, what
share of a core the service takes while nobody asks, while a live page is open that asks as a
browser does, with its figures, and while a stream is open in which nothing happens.
"""

from __future__ import annotations

import argparse
import http.client
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from html import unescape
from pathlib import Path

import psutil
from service_store import build, drive

from frontrunner.results.store import open_store
from frontrunner.server.app import create_app, listen, run
from frontrunner.server.auth import make_tokens
from frontrunner.server.pages.campaigns import POLL_DRIVEN_S, SHOWN
from frontrunner.server.settings import Limits, ServiceSettings

WARM_UP_S = 2.0
ASKED_ALONE = 60
WATCHED_S, STREAMED_S = 90.0, 20.0
API = "/api/v1"
LIVE = re.compile(r'hx-get="(/campaigns/driven/live[^"]+)"')


def serve(folder: Path) -> None:
    settings = ServiceSettings(
        store=str(folder / "load.db"),
        token_file=folder / "tokens.json",
        port=0,
        limits=Limits(requests_per_s=1e9, request_burst=10**9),
    )
    with listen(settings) as listener:
        (folder / "port").write_text(str(listener.getsockname()[1]))
        run(create_app(settings), settings, listener)


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
    whole = [
        f"{API}/campaigns",
        f"{API}/compare?campaigns=c2&campaigns=c3",
        f"{API}/recipes/{recipe}",
        "/metrics",
        "/healthz",
    ]
    driven = [f"{API}/campaigns/driven", f"{API}/campaigns/driven/best"]
    pages = [
        "/",
        "/compare",
        "/campaigns/c7",
        "/campaigns/driven",
        "/campaigns/driven/live?seen=earlier~0",
    ]
    drawn = ["/campaigns/c7/figures/speed-memory", "/campaigns/c7/figures/parallel-coordinates"]
    single = [f"/recipes/{recipe}", "/launch", "/plan?model=frontier-22b&nodes=8"]
    return [*campaigns, *whole, *driven, *pages, *drawn, *single]


class Asker:
    """One client with a connection that stays open."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}"}

    def ask(self, question: str) -> str:
        """The answer's text; raises RuntimeError for a refusal."""
        return self.ask_news(question)[0]

    def ask_news(self, question: str) -> tuple[str, bool]:
        """The answer's text, and whether it tells the page to fetch its figures."""
        self._connection.request("GET", question, headers=self._headers)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        if answer.status not in (200, 204):
            raise RuntimeError(f"{question}: {answer.status}")
        return text, answer.getheader("HX-Trigger") == "outcomes"

    def follow(self) -> None:
        """Read the stream of the driven campaign up to its present state."""
        self._connection.request("GET", f"{API}/campaigns/driven/events", headers=self._headers)
        answer = self._connection.getresponse()
        while not answer.readline().startswith(b"event: state"):
            pass

    def close(self) -> None:
        self._connection.close()


def client(asker: Asker, asked: list[str], until: float, times_s: dict[str, list[float]]) -> None:
    """Ask one question after the other until the time is over."""
    dice = random.Random(threading.get_ident())
    while time.monotonic() < until:
        question = dice.choice(asked)
        began = time.perf_counter()
        asker.ask(question)
        times_s[question].append(time.perf_counter() - began)
    asker.close()


def load(
    connect: Callable[[], Asker], asked: list[str], clients: int, seconds: float
) -> dict[str, list[float]]:
    times_s: dict[str, list[float]] = defaultdict(list)
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=client, args=(connect(), asked, until, times_s))
        for _ in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times_s


def share_of_core(server: psutil.Process, wait: Callable[[], object]) -> float:
    """The share of a core that the service needs until `wait` returns."""
    before_s, began = processor_s(server), time.monotonic()
    wait()
    return (processor_s(server) - before_s) / (time.monotonic() - began)


class Browser:
    """A browser that shows the page of the driven campaign."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._page = asker.ask("/campaigns/driven")
        self._fetch_figures()

    def watch(self) -> None:
        """Look at it for `WATCHED_S`."""
        for _ in range(int(WATCHED_S / POLL_DRIVEN_S)):
            time.sleep(POLL_DRIVEN_S)
            news, has_outcomes = self._asker.ask_news(unescape(LIVE.findall(self._page)[0]))
            self._page = news or self._page
            if has_outcomes:
                self._fetch_figures()

    def _fetch_figures(self) -> None:
        for figure in (f"figures/{name}" for name in SHOWN):
            self._asker.ask(f"/campaigns/driven/{figure}")


def processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def show(times_s: dict[str, list[float]]) -> None:
    for question, found in sorted(times_s.items()):
        found.sort()
        p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
        median = statistics.median(found)
        print(
            f"{question:62s} {len(found):6d}  median {1e3 * median:6.1f} ms  p99"
            f" {1e3 * p99:6.1f} ms"
        )


def show_load(
    connect: Callable[[], Asker],
    server: psutil.Process,
    asked: list[str],
    options: argparse.Namespace,
) -> None:
    before_s, own_before_s = processor_s(server), time.process_time()
    times_s = load(connect, asked, options.clients, options.seconds)
    spent_s, own_s = processor_s(server) - before_s, time.process_time() - own_before_s
    show(times_s)
    answers = sum(map(len, times_s.values()))
    print(
        f"{answers / options.seconds:.0f} answers a second; of each, {1e3 * spent_s / answers:.1f}"
        " ms of processor time"
    )
    print(f"were the service's and {1e3 * own_s / answers:.1f} ms the clients'")


def show_alone(asker: Asker, server: psutil.Process, asked: list[str]) -> None:
    """The processor time of the service for an answer, of each question by itself, while the driver
    goes on.
    """
    for question in sorted(asked):
        before_s = processor_s(server)
        for _ in range(ASKED_ALONE):
            asker.ask(question)
        print(
            f"{question:62s} {1e3 * (processor_s(server) - before_s) / ASKED_ALONE:6.1f} ms of the"
            " service alone"
        )


def port_and_token(folder: Path) -> tuple[int, str]:
    """Wait for the service that `serve` starts; return its port and the operator's token."""
    while not (folder / "port").exists():
        time.sleep(0.1)
    return int((folder / "port").read_text()), make_tokens(folder / "tokens.json").operator


def measure(folder: Path, options: argparse.Namespace, recipe: str) -> None:
    me = [sys.executable, __file__, "--folder", str(folder)]
    server = subprocess.Popen([*me, "--part", "serve"])
    driver = None
    try:
        port, token = port_and_token(folder)
        driver = subprocess.Popen(
            [*me, "--part", "drive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        driver.stdout.readline()  # it says when it has begun
        asked, process = questions(recipe), psutil.Process(server.pid)

        def connect() -> Asker:
            return Asker(port, token)

        idle = share_of_core(process, lambda: time.sleep(STREAMED_S))
        load(connect, asked, options.clients, WARM_UP_S)
        show_load(connect, process, asked, options)
        show_alone(connect(), process, asked)
        page = share_of_core(process, Browser(connect()).watch)
        written, latest_s = driver.communicate()[0].split()
        with open_store(str(folder / "load.db"), create=False, read_only=True) as store:
            kept = store.campaign("driven").outcomes
        print(
            f"the driver wrote {written} outcomes, at most {latest_s} s late; the store holds"
            f" {kept}"
        )
        print(f"while nobody asks, the service takes {100 * idle:.2f} % of a core")
        print(f"while a live page is open and trials come in, {100 * page:.2f} %")
        follower = connect()
        follower.follow()
        stream = share_of_core(process, lambda: time.sleep(STREAMED_S))
        follower.close()
        print(f"while a stream is open in which nothing happens, {100 * stream:.2f} %")
    finally:
        for started in (driver, server):
            if started is not None:
                started.terminate()
                started.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
        drive(options.folder / "load.db")
    else:
        with tempfile.TemporaryDirectory() as name:
            recipe = build(Path(name) / "load.db", options.campaigns, options.measurements)
            measure(Path(name), options, recipe)


if __name__ == "__main__":
    main()
