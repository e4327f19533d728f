"""How fast everything answers over one campaign of 100,000 measurements: commands, pages, and the
API of a service.

    python benchmarks/one_campaign.py [--measurements 100000] [--clients 20] [--seconds 15] [--store
    FILE]
                                      [--only commands|alone|load]

Builds a store (or takes FILE, which is built if missing) with recipes of a real space, at the rates
and peaks of the formulas with noise; 8 % are measured twice, and as many more failed. Runs the
commands that read it, one at a time, with their time and peak memory. Then serves it from a process
of its own and asks for every page, figure and answer of the API: the first time, and again once it
is known, with the size as it is sent; a new outcome in between shows what it costs to follow. Then
as many clients at once ask all that pages ask.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import insert, update

from frontrunner.config.campaign import parse_campaign
from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.results.outcome import Measurement, pool
from frontrunner.results.rows import outcome_to_columns
from frontrunner.results.schema import (
    AttemptRow,
    CampaignRow,
    EventRow,
    FailureRow,
    MeasurementRow,
    StandingRow,
    TrialRow,
    recipe_to_json,
)
from frontrunner.results.store import Store, open_store
from frontrunner.search.campaign_setup import create
from frontrunner.search.spec import CampaignSpec
from frontrunner.server.app import create_app, listen, run
from frontrunner.server.auth import make_tokens
from frontrunner.server.pages.campaigns import SHOWN
from frontrunner.server.settings import Limits, ServiceSettings
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.recipe import Recipe
from frontrunner.views.charts import FIGURES

NAME = "large"
CHUNK = 5000
WARM_UP_S = 15.0
SPACE: dict[str, list[Any]] = {
    "devices": [32, 64, 128],
    "tensor_parallel": [1, 2, 4, 8],
    "pipeline_parallel": [1, 2, 4, 8],
    "micro_batch_seqs": [1, 2, 4, 8, 16],
    "schedule": ["1f1b", "gpipe", "interleaved-1f1b"],
    "virtual_stages": [1, 2, 3],
    "sharding": ["none", "zero-1", "zero-2", "zero-3"],
    "recompute": ["none", "selective", "full"],
    "loss_chunks": [1, 2, 4, 8],
    "sequence_parallel": [False, True],
    "rank_order": ["tp-dp-pp", "tp-pp-dp"],
}
FAILED, REPEATED = 0.08, 0.08
API = f"/api/v1/campaigns/{NAME}"


def spec(measurements: int) -> CampaignSpec:
    """A campaign of more legal recipes than are tried."""
    table: dict[str, Any] = {
        "evaluator": "simulated",
        "model": {"preset": "frontier-22b"},
        "cluster": {"preset": "frontier", "nodes": 16},
        "problem": {"sequence_length": 2048, "global_batch": 512},
        "space": SPACE,
        "budget": {"probes": 2 * measurements},
    }
    return parse_campaign(table, default_name=NAME, base=Path()).spec


def build(path: Path, measurements: int) -> None:
    """Store the campaign by bulk insert."""
    dice, wanted = random.Random(0), spec(measurements)
    survey = wanted.survey()
    tried = round(measurements / (1 + REPEATED) / (1 - FAILED))
    recipes = survey.recipes.take(dice.sample(range(len(survey.recipes)), tried))
    rates = [
        (one.tokens_per_s, int(one.peak_memory_bytes))
        for one in estimate_many(recipes, wanted.problem)
    ]
    with open_store(str(path)) as store:
        campaign = create(store, wanted, len(survey.recipes))
        of_trials = (
            trial_rows(campaign.id, number, recipe, recipe_id(wanted.problem, recipe), rate, dice)
            for number, (recipe, rate) in enumerate(zip(recipes, rates, strict=True), start=1)
        )
        while some := list(itertools.islice(of_trials, CHUNK)):
            with store.database.write() as connection:
                for table in (
                    TrialRow,
                    AttemptRow,
                    MeasurementRow,
                    StandingRow,
                    FailureRow,
                    EventRow,
                ):
                    if rows := [row for own in some for of, row in own if of is table]:
                        connection.execute(insert(table), rows)
        finish(store, campaign.id, tried)


def finish(store: Store, campaign_id: int, outcomes: int) -> None:
    """Say in the campaign's row how many outcomes it has, as a driver does."""
    changed = {
        "outcomes": outcomes,
        "updated_at": f"2026-01-02T00:00:00.{outcomes:06d}+00:00",
        "state": "finished",
    }
    with store.database.write() as connection:
        connection.execute(
            update(CampaignRow).where(CampaignRow.id == campaign_id).values(**changed)
        )


def trial_rows(
    campaign_id: int,
    number: int,
    recipe: Recipe,
    name: str,
    rate: tuple[float, int],
    dice: random.Random,
) -> list[tuple[Any, dict[str, Any]]]:
    """The rows of one trial, each with its table."""
    failed, repeats = dice.random() < FAILED, 1 + (dice.random() < REPEATED)
    key, state = {"campaign_id": campaign_id, "recipe_id": name}, "failed" if failed else "measured"
    final = {
        "number": number,
        "state": state,
        "outcome_number": number,
        "recipe_json": recipe_to_json(recipe),
    }
    found: list[tuple[Any, dict[str, Any]]] = [(TrialRow, {"id": number, **key, **final})]
    expected = {
        "chance": 0.9,
        "expected_improvement": 0.01,
        "of_front": False,
        "tokens_per_s": rate[0],
    }
    data = (
        "{"
        + ", ".join(f'"{k}":{str(v).lower()}' for k, v in (expected | {"trial": number}).items())
        + "}"
    )
    moment = "2026-01-01T00:00:00.000000+00:00"
    found.append(
        (
            EventRow,
            {"campaign_id": campaign_id, "at": moment, "kind": "proposed", "data_json": data},
        )
    )
    measured = []
    for repeat in range(1, 1 + (1 if failed else repeats)):
        attempt = {
            "id": 2 * number + repeat,
            "campaign_id": campaign_id,
            "trial_id": number,
            "number": repeat,
            "state": state,
            "run_folder": f"runs/{NAME}/{number}-{repeat}",
            "started_at": moment,
            "finished_at": moment,
        }
        found.append((AttemptRow, attempt))
        if failed:
            about = {
                "message": "killed by signal 9",
                "log_tail": "HIP out of memory\n" * 20,
                "node_seconds": 30.0,
            }
            about["kind"] = "out-of-memory" if rate[1] > 60 * 2**30 else "crashed"
            found.append((FailureRow, {"attempt_id": attempt["id"], **about}))
            continue
        measured.append(measurement(rate, dice))
        found.append(
            (MeasurementRow, {"attempt_id": attempt["id"], **outcome_to_columns(measured[-1])})
        )
    if measured:
        found.append((StandingRow, {"trial_id": number, **key, **asdict(pool(measured))}))
    return found


def measurement(rate: tuple[float, int], dice: random.Random) -> Measurement:
    """A measurement of 5 steps on 8 ranks around the estimate."""
    tokens = 512 * 2048
    mean = tokens / rate[0] * dice.gauss(1.0, 0.1)
    times = tuple(max(1e-3, mean * dice.gauss(1.0, 0.02)) for _ in range(5))
    step = statistics.median(times)
    return Measurement(
        step_times_s=times,
        tokens_per_step=tokens,
        tokens_per_s=tokens / step,
        model_tflops_per_device=500 / step,
        hardware_tflops_per_device=600 / step,
        mfu=min(0.9, 2.5 / step),
        peak_memory_bytes=tuple(int(rate[1] * dice.uniform(0.9, 1.05)) for _ in range(8)),
        losses=tuple(dice.uniform(5, 11) for _ in range(7)),
        node_seconds=30.0,
        build_time_s=2.0,
        first_step_time_s=1.0,
    )


def measure_commands(path: Path, recipe: str, folder: Path) -> None:
    """Print the time and the peak memory of each command that reads the store."""
    commands = [
        *(
            ["best"],
            ["best", "--by", "memory"],
            ["pareto"],
            ["pareto", "--objectives", "tokens,memory,nodes"],
        ),
        *(["status"], ["failures"], ["show", recipe], ["explain", recipe], ["campaigns"]),
        *(
            ["dataframe", "--out", str(folder / "frame.csv")],
            ["report", "--out", str(folder / "report.html")],
        ),
        *(["plot", "--figure", name, "--out", str(folder / f"{name}.svg")] for name in FIGURES),
    ]
    for command in commands:
        began = time.perf_counter()
        worker = subprocess.Popen(
            [sys.executable, "-m", "frontrunner", *command, "--store", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        usage = wait_with_usage(worker)
        took_s, cpu_s = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
        words = " ".join(one for one in command if "/" not in one)
        print(
            f"{words:58s} {took_s:7.2f} s  {cpu_s:7.2f} s CPU  {usage.ru_maxrss / 1024:6.0f} MiB",
            flush=True,
        )


def wait_with_usage(worker: subprocess.Popen[bytes]) -> resource.struct_rusage:
    """Wait for a process; return what it used."""
    import os

    _, _, usage = os.wait4(worker.pid, 0)
    worker.returncode = 0
    return usage


def pages(recipe: str) -> list[str]:
    """What pages ask."""
    page = f"/campaigns/{NAME}"
    return [
        *("/", page, f"{page}/live?seen=earlier~0", f"{page}/trials?page=9", f"/recipes/{recipe}"),
        *(
            f"{page}/recipes",
            f"{page}/recipes?tensor_parallel=2&sort=-mfu&page=40",
            f"{page}/recipes/points",
        ),
        *(f"{page}/figures/{name}" for name in SHOWN),
    ]


def operations() -> list[str]:
    """What programs ask of the API."""
    return [
        *(
            API,
            f"{API}/best",
            f"{API}/best?top=1000",
            f"{API}/best?by=memory&max_memory_gb=40",
            f"{API}/pareto",
        ),
        *(
            f"{API}/front?objective=tokens&objective=nodes",
            f"{API}/recipes?tensor_parallel=2&page=3",
        ),
        *(
            f"{API}/trials?page=9&page_size=200",
            f"{API}/failures?page=2",
            f"{API}/baseline",
        ),
        "/api/v1/campaigns",
        *(f"{API}/figures/{name}" for name in FIGURES),
        *(f"{API}/report", f"/campaigns/{NAME}/recipes.csv"),
    ]


def ask_alone(
    port: int, token: str, asked: list[str], store: Path, process: psutil.Process
) -> None:
    """Print the time of the first answer, of the next, and of the one after another outcome, with
    the size.
    """
    for question in asked:
        times, size, status = [], 0, 0
        for turn in range(3):
            time.sleep(1.2)  # longer than an answer is cached
            if turn == 2:
                with open_store(str(store)) as opened:
                    found = opened.campaign(NAME)
                    finish(opened, found.id, found.outcomes + 1)
            began, cpu_s = time.perf_counter(), processor_s(process)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request(
                "GET",
                question,
                headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"},
            )
            answer = connection.getresponse()
            status, body = answer.status, answer.read()
            times.append(
                (1e3 * (time.perf_counter() - began), 1e3 * (processor_s(process) - cpu_s))
            )
            size = len(body)
            connection.close()
        walls = "  ".join(f"{wall:7.0f} ({cpu:6.0f})" for wall, cpu in times)
        print(
            f"{question:62s} {walls} ms  {size / 1e3:8.1f} kB"
            f" {'' if status in (200, 204) else status}",
            flush=True,
        )


def serve(folder: Path) -> None:
    """Serve the store, and write the port to a file."""
    settings = ServiceSettings(
        store=str(folder / "load.db"),
        token_file=folder / "tokens.json",
        port=0,
        limits=Limits(requests_per_s=1e9, request_burst=10**9),
    )
    with listen(settings) as listener:
        (folder / "port").write_text(str(listener.getsockname()[1]))
        run(create_app(settings), settings, listener)


def port_and_token(folder: Path) -> tuple[int, str]:
    """Wait for the service that `serve` starts; return its port and the operator's token."""
    while not (folder / "port").exists():
        time.sleep(0.1)
    return int((folder / "port").read_text()), make_tokens(folder / "tokens.json").operator


def processor_s(process: psutil.Process) -> float:
    """The processor time that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


def load(
    port: int, token: str, asked: list[str], clients: int, seconds: float
) -> dict[str, list[float]]:
    """Ask from several connections at once; return the seconds of each question's answers."""
    times_s: dict[str, list[float]] = defaultdict(list)
    until = time.monotonic() + seconds

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        dice = random.Random(threading.get_ident())
        while time.monotonic() < until:
            question = dice.choice(asked)
            began = time.perf_counter()
            connection.request("GET", question, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            if answer.status not in (200, 204):
                raise RuntimeError(f"{question}: {answer.status}")
            times_s[question].append(time.perf_counter() - began)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times_s


def show(times_s: dict[str, list[float]]) -> None:
    """Print the median and the 99th percentile of each question."""
    for question, found in sorted(times_s.items()):
        found.sort()
        p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
        median = statistics.median(found)
        print(
            f"{question:62s} {len(found):6d}  median {1e3 * median:6.1f} ms  p99"
            f" {1e3 * p99:6.1f} ms"
        )


def measure_service(folder: Path, store: Path, recipe: str, options: argparse.Namespace) -> None:
    """Serve the store and ask."""
    me = [sys.executable, __file__, "--part", "serve", "--folder", str(folder)]
    server = subprocess.Popen(me)
    try:
        port, token = port_and_token(folder)
        process = psutil.Process(server.pid)
        if options.only in (None, "alone"):
            print("first, again, after another outcome: ms (of processor time); bytes sent")
            ask_alone(port, token, [*pages(recipe), *operations()], store, process)
            print(f"the service holds {process.memory_info().rss / 2**20:.0f} MiB")
        if options.only in (None, "load"):
            for asked in (pages(recipe), [*pages(recipe), *operations()[:13]]):
                load(port, token, asked, options.clients, WARM_UP_S)
                show(load(port, token, asked, options.clients, options.seconds))
            print(f"the service holds {process.memory_info().rss / 2**20:.0f} MiB")
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measurements", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--only", choices=("commands", "alone", "load"))
    parser.add_argument("--folder", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=("serve",), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "serve":
        serve(options.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = options.store or folder / "load.db"
        if not store.exists():
            build(store, options.measurements)
        if store != folder / "load.db":
            (folder / "load.db").symlink_to(store.resolve())
        with open_store(str(store), read_only=True) as opened, opened.database.read() as connection:
            recipe = connection.exec_driver_sql(
                "SELECT recipe_id FROM standings LIMIT 1"
            ).scalar_one()
        print(f"{options.measurements:,} measurements, {store.stat().st_size / 1e6:.0f} MB")
        if options.only in (None, "commands"):
            measure_commands(store, recipe, folder)
        if options.only != "commands":
            measure_service(folder, store, recipe, options)


if __name__ == "__main__":
    main()
