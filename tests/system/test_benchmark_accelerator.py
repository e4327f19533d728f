"""The benchmark of one device runs to its end on a CPU, with torch and numpy alone, and reports
what it measured.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "benchmarks" / "accelerator.py"
# Everything else that the project installs; a name that maps to None cannot be imported.
ABSENT = (
    "click",
    "deephyper",
    "deepspeed",
    "optuna",
    "pandas",
    "psutil",
    "pydantic",
    "rich",
    "scipy",
    "sqlalchemy",
)
CLUSTER = {
    "name": "one", "device": "h100-80gb", "backend": "cuda", "nodes": 1, "devices_per_node": 1,
    "memory_gib_per_device": 79.6, "peak_tflops": {"bf16": 989.4},
}  # fmt: skip


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))


def benchmark(out: Path, *options: str, path: Path | None = None) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "OMP_NUM_THREADS": "1"
    }
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    fixed = ("--device", "cpu", "--round-seconds", "0.05", "--out", str(out))
    subprocess.run(
        [sys.executable, "-P", str(SCRIPT), *fixed, *options],
        env=environment,
        check=True,
        timeout=400,
    )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("accelerator")
    # All of the benchmark's processes read it.
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({ABSENT!r}))\n"
    )
    return benchmark(folder / "measured.json", "--minutes", "5", path=folder)


@pytest.mark.nightly
def test_every_cell_is_measured_on_both_sides(document: dict[str, Any]) -> None:
    assert [row["status"] for row in document["cells"]] == ["measured"] * len(document["cells"])
    for row in document["cells"]:
        trainer, plain = row["sides"]["trainer"], row["sides"]["plain"]
        assert row["trainer_over"]["plain"] == pytest.approx(
            trainer["step_time_s_median"] / plain["step_time_s_median"]
        )
        # Both train on the same text: the losses differ by the first weights and the draws.
        assert trainer["last_loss"] == pytest.approx(plain["last_loss"], rel=0.1)
        assert max(trainer["last_loss"], plain["last_loss"]) < math.log(
            512
        )  # a uniform guess over the vocabulary
        titan = row["sides"].get("torchtitan")
        assert (titan is not None) == row["model"].startswith("llama")
        assert titan is None or "not installed" in titan["error"]


@pytest.mark.nightly
def test_dry_run_and_plan_stand_beside_each_cell(document: dict[str, Any]) -> None:
    for row in document["cells"]:
        assert (
            row["dry_run"]["peak_bytes"] > row["parameters"] * 12
        )  # weights and two states, in fp32 or wider
        assert row["dry_run"]["peak_bytes_over_measured"] is None  # a CPU has no allocator to ask
        planned_s, step_s = (
            row["plan"]["step_time_s"],
            row["sides"]["trainer"]["step_time_s_median"],
        )
        over = (
            None if planned_s is None else pytest.approx(planned_s / step_s)
        )  # None without the device's peak
        assert row["plan"]["step_time_s_over_measured"] == over


@pytest.mark.nightly
def test_document_says_what_was_not_there(document: dict[str, Any]) -> None:
    assert document["device"]["type"] == "cpu"
    assert "measured here" in document["device"]["cluster"]["source"]
    assert document["campaign"]["status"].startswith("not run: sqlalchemy")
    assert document["bars"] == []


@pytest.mark.nightly
def test_campaign_of_the_project_is_ranked(tmp_path: Path) -> None:
    found = benchmark(tmp_path / "measured.json", "--minutes", "4", "--only", "no such cell")
    assert found["cells"] == []
    assert found["campaign"]["trials"]["measured"] == 3
    rates = [place["tokens_per_s"] for place in found["campaign"]["ranking"]]
    assert len(rates) == 3
    assert rates == sorted(rates, reverse=True)


@pytest.mark.nightly
def test_lost_process_is_a_row_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerator

    worker = accelerator.Worker("cpu")
    monkeypatch.setattr(accelerator, "CPU_CELLS", accelerator.CPU_CELLS[:1] * 2)
    monkeypatch.setattr(worker, "start", lambda: None)  # it was there when the cell began
    os.kill(worker._process.pid, signal.SIGKILL)
    found = accelerator.rows(
        worker, argparse.Namespace(only="", round_seconds=0.05), time.monotonic() + 200
    )
    lost = next(found)
    assert (lost["status"], lost["error"]) == ("lost", "the process ended with status -9")
    monkeypatch.undo()
    assert next(found)["status"] == "measured"
    worker.end()


class FakeDevice:
    """A device of 100 bytes, of which each side holds 40, and 10 more in a step."""

    held = 0
    device = torch.device("cpu")

    def allocated_bytes(self) -> int:
        return self.held

    def peak_bytes(self) -> int:
        return self.held + 10

    def total_bytes(self) -> int:
        return 100

    def seconds(self, work: Callable[[], object]) -> float:
        work()
        return 1.0

    def forget_peak(self, *, empty_cache: bool = False) -> None:
        del empty_cache

    def retries(self) -> int:
        return 0


class FakeSide:
    def __init__(self, device: FakeDevice, size: int) -> None:
        self._device, self._size = device, size
        device.held += size
        assert device.held <= 100, "out of memory"

    def __del__(self) -> None:
        self._device.held -= self._size

    def run(self, _: int) -> float:
        return 2.0


@pytest.mark.parametrize(("size", "in_turns"), [(40, False), (20, True)])
def test_sides_share_the_memory_or_follow_one_another(size: int, *, in_turns: bool) -> None:
    from accelerator_worker import ROUNDS, measured_sides

    device, waited = FakeDevice(), list[int]()

    def missing() -> FakeSide:
        raise ImportError("No module named 'torchtitan'")

    makers = {
        "trainer": lambda: FakeSide(device, size),
        "plain": lambda: FakeSide(device, size),
        "torchtitan": missing,
    }
    found = measured_sides(makers, 1.0, device, lambda: waited.append(device.held))
    assert waited == [size]
    assert device.held == 0
    for name in ("trainer", "plain"):
        assert found[name]["in_turns"] == in_turns
        assert found[name]["peak_allocated_bytes"] == size + 10
        assert len(found[name]["step_times_s"]) == ROUNDS
    assert found["torchtitan"] == {"error": "not installed: No module named 'torchtitan'"}
    with pytest.raises(ImportError):
        measured_sides({"trainer": missing}, 1.0, device, lambda: None)


def test_bars_are_judged_by_the_worst_cell() -> None:
    from accelerator import bars

    def row(
        cell: str, over: float, mfu: float, dry_run: float | None, **more: Any
    ) -> dict[str, Any]:
        fixed = {
            "status": "measured",
            "model": "llama-3.2-1b",
            "precision": "bf16",
            "optimizer_state": "fp32",
        }
        figures = {
            "trainer_over": {"plain": over},
            "mfu": mfu,
            "dry_run": {"peak_bytes_over_measured": dry_run},
        }
        return fixed | figures | {"cell": cell} | more

    rows = [
        row("a", 1.02, 0.41, 1.004),
        row("b", 0.90, 0.46, None),
        row("c", 1.01, 0.30, 0.98),
        row("d", 1.90, 0.30, None, optimizer_state="bf16"),
        {"cell": "e", "status": "failed"},
    ]
    found = {"device": {"type": "cuda"}, "cells": rows, "campaign": {"status": "not run"}}
    assert [(bar["cell"], bar["holds"]) for bar in bars(found)] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]
    assert [bar["holds"] for bar in bars(found | {"cells": rows[-1:]})] == [None] * 3
    slow = bars(found | {"cells": [row("a", 1.04, 0.44, 1.0)]})
    assert [bar["holds"] for bar in slow] == [False, False, True]


def test_plain_model_computes_what_the_trainers_does() -> None:
    from accelerator_cells import CPU_CELLS
    from accelerator_worker import planned
    from plain_loop import PlainModel

    from frontrunner.evaluators.trainer.model import Gpt, initialize

    theirs = {
        "embedding.tokens.": "embedding.", "embedding.positions.": "positions.",
        "attention.query": "q",
        "attention.key": "k", "attention.value": "v", "attention.output": "o",
        "attention_norm": "norm_1",
        "feed_forward_norm": "norm_2", "feed_forward.": "",
    }  # fmt: skip
    for cell in CPU_CELLS:
        model, _ = planned(cell, CLUSTER)
        ours = Gpt(model, sequence_length=cell.sequence_length, layers=range(len(model.layers)))
        initialize(ours.named_parameters(), seed=1, layers=len(model.layers))
        values = {
            reduce(lambda name, pair: name.replace(*pair), theirs.items(), name): value
            for name, value in ours.state_dict().items()
        }
        if model.head.tied:
            values["head.weight"] = values["embedding.weight"]
        plain = PlainModel(model, cell)
        plain.load_state_dict(values)
        tokens = torch.randint(500, (2, cell.sequence_length))
        torch.testing.assert_close(
            plain.head(plain.norm(plain(tokens))), ours(tokens), rtol=1e-5, atol=1e-5
        )


def test_as_many_layers_as_fit() -> None:
    from accelerator_cells import LLAMA_8B, Cell
    from accelerator_worker import planned

    cell = Cell(model=LLAMA_8B, fits=True, recompute="full", loss_chunks=8)
    layers = [
        len(planned(cell, CLUSTER | {"memory_gib_per_device": gib})[0].layers)
        for gib in (79.6, 140.4, 900.0)
    ]
    assert layers == sorted(layers)
    assert 8 <= layers[0] < layers[1] < layers[2] == 32
    with pytest.raises(MemoryError, match="not one layer"):
        planned(cell, CLUSTER | {"memory_gib_per_device": 4.0})
