"""What one device reaches with the trainer: against a plain loop, torchtitan's model, dry runs,
`plan`; a campaign.

    python benchmarks/accelerator.py                           # an accelerator, at most 8 minutes
    python benchmarks/accelerator.py --wheels wheels           # with a campaign of 12 probes, in
    the same time python benchmarks/accelerator.py --device cpu --minutes 2  # tiny models, to see
    that it runs

It needs torch >= 2.11, numpy and this repository; the project need not be installed. Only the
campaign needs more, and pandas: packages that are not installed may lie in a folder as wheels. For
Python 3.12, without torch, numpy and pandas:

    pip download -d wheels --no-deps --only-binary=:all: --python-version 3.12 --platform
    manylinux_2_28_x86_64 \\
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -c constraints.txt annotated-types click \\
        joblib markdown-it-py mdurl narwhals packaging psutil pydantic pydantic-core pygments rich scikit-learn scipy \\
        sqlalchemy threadpoolctl typing-extensions typing-inspection

A cell is a model, a batch and a recipe of one device. The trainer's steps are timed against a plain
loop (`plain_loop.py`: the same model, attention, precision, recompute and chunks, fused AdamW,
blocks and loss compiled), and that loop over torchtitan's Llama where it is installed: in turns in
one process, or one after another where they do not fit into the memory together. Cells run in a
process of their own, which a crash or a hang costs and no more. Compiling counts against the time;
cells that it does not allow are left out, the least important first, and are rows that say so.

MFU is model FLOPs over the device's public dense peak, or, of a device without a preset, over its
best matrix product measured here: `mfu` credits attention over the whole sequence, as PaLM and
torchtitan do, `mfu_megatron` half of it. Recompute is never counted. The exit status is 0 where all
bars hold, 1 where one is missed or was not measured; on a CPU no bar applies.
"""  # noqa: E501

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import importlib.util
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent)
)  # for the modules beside this one, also under `python -P`

from accelerator_cells import ACCELERATOR_CELLS, CAMPAIGNS, CPU_CELLS, LLAMA_1B, RECIPE, Cell

ROOT = Path(__file__).resolve().parent.parent
START_S, GRACE_S = 180.0, 30.0
"""How long the measuring process may take to start, and a cell to go on when the time is up."""
CAMPAIGN_SHARE = 0.4
MOST_OVER_PLAIN, LEAST_MFU, MOST_DRY_RUN_ERROR = 1.03, 0.45, 0.01


# ---- The process that measures.


class Worker:
    """The process that holds the device, and what it says of it."""

    def __init__(self, kind: str | None) -> None:
        self._kind = kind
        self._process: Any = None
        self.start()

    def start(self) -> None:
        """Start it unless it runs."""
        if self._process is not None and self._process.is_alive():
            return
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, self._kind))
        self._process.start()
        theirs.close()
        self.device = self._answer(START_S)

    def row(self, cell: Cell, round_s: float, limit_s: float) -> dict[str, Any]:
        """Measure a cell; raises where the process dies or takes more than `limit_s`."""
        self._connection.send((cell, round_s))
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            if not self._connection.poll(limit_s):
                raise ChildProcessError(f"stopped after {limit_s:.0f} s")
            return self._connection.recv()  # type: ignore[no-any-return]
        except (EOFError, ConnectionError):
            self._process.join()
            raise ChildProcessError(
                f"the process ended with status {self._process.exitcode}"
            ) from None

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def work(requests: Connection, kind: str | None) -> None:
    from accelerator_worker import serve

    serve(requests, kind)


def rows(
    worker: Worker, arguments: argparse.Namespace, deadline: float
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the cells asked for, in order; a process that was lost is replaced before
    the next cell.
    """
    is_cpu = worker.device["type"] == "cpu"
    longest_s = (
        {False: 0.0, True: 0.0} if is_cpu else {False: 12.0, True: 30.0}
    )  # compiled or not; first as assumed
    for cell in CPU_CELLS if is_cpu else ACCELERATOR_CELLS:
        if arguments.only not in cell.name:
            continue
        row: dict[str, Any] = {"status": "left out: no time"}
        start = time.monotonic()
        if deadline - start > longest_s[cell.compile]:
            try:
                worker.start()
                row = worker.row(
                    cell, arguments.round_seconds, deadline + GRACE_S - time.monotonic()
                )
            except ChildProcessError as error:
                row = {"status": "lost", "error": str(error)}
                worker.end()
            longest_s[cell.compile] = max(longest_s[cell.compile], time.monotonic() - start)
        yield {"cell": cell.name, **dataclasses.asdict(cell), **row}


# ---- A campaign, by the project's own commands.


def can_run_campaign(wheels: Path | None) -> bool:
    return wheels is not None or importlib.util.find_spec("sqlalchemy") is not None


def campaign(device: dict[str, Any], wheels: Path | None, limit_s: float) -> dict[str, Any]:
    """Run `frontrunner launch` over recipes of this device; its ranking, or why there is none."""
    if not can_run_campaign(wheels):
        return {"status": "not run: sqlalchemy is not installed and --wheels was not given"}
    if limit_s < GRACE_S:
        return {"status": "left out: no time"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for wheel in sorted(wheels.glob("*.whl")) if wheels is not None else ():
            zipfile.ZipFile(wheel).extractall(folder / "packages")
        paths = (str(folder / "packages"), str(ROOT / "src"), os.environ.get("PYTHONPATH"))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        text = CAMPAIGNS["cpu" if device["type"] == "cpu" else "accelerator"]
        (folder / "one-device.toml").write_text(
            text.format(minutes=(limit_s - GRACE_S / 2) / 60), encoding="utf-8"
        )

        def command(*words: str, limit_s: float) -> str:
            line = [sys.executable, "-P", "-m", "frontrunner", *words]
            return subprocess.run(
                line,
                cwd=folder,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
                timeout=limit_s,
            ).stdout

        start = time.monotonic()
        try:
            command("launch", "one-device.toml", limit_s=limit_s)
            ended = "ran"
        except subprocess.TimeoutExpired:
            ended = "stopped: no time"
        except subprocess.CalledProcessError as error:
            return {
                "status": f"failed: {(error.stderr.strip().splitlines() or ['no message'])[-1]}"
            }
        found: dict[str, Any] = {"status": ended, "file": text, "wall_s": time.monotonic() - start}
        campaign = json.loads(command("status", "--json", limit_s=GRACE_S))
        found |= {"reason": campaign["campaign"]["state_reason"]}
        found |= {key: campaign[key] for key in ("trials", "failures", "outlook")}
        ranking = json.loads(command("best", "--json", limit_s=GRACE_S))
        found["ranking"] = [
            {
                "recipe": {key: place["recipe"][key] for key in (*RECIPE, "offload")},
                **place["standing"],
            }
            for place in ranking
        ]
        return found


# ---- What came of it.


def bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each bar with the figure that is nearest to missing it; `holds` is None where it was
    not measured.
    """
    if found["device"]["type"] == "cpu":
        return []
    measured = [row for row in found["cells"] if row["status"] == "measured"]
    # A plain loop with fp32 states is no measure of one with bf16 states.
    over = [
        (row["trainer_over"].get("plain"), row["cell"])
        for row in measured
        if row["optimizer_state"] == "fp32"
    ]
    mfu = [
        (row["mfu"], row["cell"])
        for row in measured
        if row["model"] == LLAMA_1B and row["precision"] == "bf16"
    ]
    mfu += [(place["mfu"], "the campaign") for place in found["campaign"].get("ranking", [])[:1]]
    traced = [(row["dry_run"].get("peak_bytes_over_measured"), row["cell"]) for row in measured]

    def bar(
        text: str, figures: list[tuple[float | None, str]], worth: Any, holds: Any
    ) -> dict[str, Any]:
        known = [(figure, cell) for figure, cell in figures if figure is not None]
        figure, cell = max(known, key=lambda pair: worth(pair[0]), default=(None, None))
        return {
            "bar": text,
            "figure": figure,
            "cell": cell,
            "holds": None if figure is None else holds(figure),
        }

    return [
        bar(
            "a step takes at most 3 % more than the plain loop's",
            over,
            float,
            lambda x: x <= MOST_OVER_PLAIN,
        ),
        bar(
            f"{LLAMA_1B} reaches 45 % MFU at its best recipe", mfu, float, lambda x: x >= LEAST_MFU
        ),
        bar(
            "a dry run's peak is within 1 % of the allocator's",
            traced,
            lambda x: abs(x - 1),
            lambda x: abs(x - 1) <= MOST_DRY_RUN_ERROR,
        ),
    ]


HEAD = (
    f"{'cell':<66} {'layers':>6} {'step ms':>9} {'spread':>6} {'/plain':>6} {'/titan':>6}"
    f" {'MFU':>6} {'Megatron':>8}"
)
HEAD += f" {'GiB':>6} {'dry run':>7} {'plan s':>6} {'plan B':>6}"


def line(row: dict[str, Any]) -> str:
    """Return a cell's row of the table; a dash is unknown."""
    if row["status"] != "measured":
        return f"{row['cell']:<66} {row['status']}"
    trainer, over, plan = row["sides"]["trainer"], row["trainer_over"], row["plan"]
    peak = trainer["peak_allocated_bytes"]

    def cut(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    words = [
        (
            f"{row['layers']:>6} {1000 * trainer['step_time_s_median']:>9.2f}"
            f" {trainer['spread']:>6.1%}"
        ),
        f"{cut(over.get('plain'), '.3f'):>6} {cut(over.get('torchtitan'), '.3f'):>6}",
        (
            f"{cut(row['mfu'], '.1%'):>6} {cut(row['mfu_megatron'], '.1%'):>8}"
            f" {cut(peak and peak / 2**30, '.2f'):>6}"
        ),
        f"{cut(row['dry_run'].get('peak_bytes_over_measured'), '.4f'):>7}",
        (
            f"{cut(plan['step_time_s_over_measured'], '.2f'):>6}"
            f" {cut(plan['peak_memory_bytes_over_measured'], '.2f'):>6}"
        ),
    ]
    return f"{row['cell']:<66} {' '.join(words)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda", "xpu"), help="default: the accelerator, else the CPU"
    )
    parser.add_argument(
        "--minutes", type=float, default=7.5, help="for everything, the campaign included"
    )
    parser.add_argument(
        "--round-seconds", type=float, default=0.6, help="of each side, five rounds per cell"
    )
    parser.add_argument("--only", default="", help="only the cells whose names contain this")
    parser.add_argument("--wheels", type=Path, help="folder of wheels for the campaign; see above")
    parser.add_argument("--out", type=Path, help="default: docs/measured/DATE-DEVICE.json")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes - GRACE_S
    worker = Worker(arguments.device)
    date, device = dt.datetime.now(dt.UTC), worker.device
    slug = re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
    out = arguments.out or ROOT / "docs" / "measured" / f"{date:%Y-%m-%d}-{slug}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "version": 2,
        "date": date.isoformat(timespec="seconds"),
        "device": device,
        "cells": [],
    }

    def write() -> None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    print(HEAD)
    share = CAMPAIGN_SHARE if can_run_campaign(arguments.wheels) else 0.0
    try:
        for row in rows(worker, arguments, deadline - 60 * arguments.minutes * share):
            found["cells"].append(row)
            print(line(row), flush=True)
            write()
    finally:
        worker.end()
    found["campaign"] = campaign(device, arguments.wheels, deadline - time.monotonic())
    found["bars"] = bars(found)
    write()
    print(f"campaign: {found['campaign']['status']}")
    for place in found["campaign"].get("ranking", []):
        recipe = ", ".join(f"{key}={value}" for key, value in place["recipe"].items())
        print(f"  {place['tokens_per_s']:>10,.0f} tokens/s: {recipe}")
    for bar in found["bars"]:
        held = {None: "not measured", True: "holds", False: "missed"}[bar["holds"]]
        print(
            f"{held}: {bar['bar']}"
            + (f" ({bar['figure']:.4f}: {bar['cell']})" if bar["cell"] else "")
        )
    print(f"written to {out}")
    sys.exit(not all(bar["holds"] for bar in found["bars"]))


if __name__ == "__main__":
    main()
