"""The benchmark of one device runs to its end on a CPU, with torch and numpy alone, and tells what it measured."""

import json
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "benchmarks" / "accelerator.py"
# Everything else that the project installs; a name that maps to None cannot be imported.
ABSENT = ("click", "deephyper", "deepspeed", "optuna", "pandas", "psutil", "pydantic", "rich", "sqlalchemy")
RUN = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({ABSENT!r}))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("accelerator") / "measured.json"
    options = ["--device", "cpu", "--minutes", "2", "--round-seconds", "0.05", "--out", str(out)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-P", "-c", RUN, str(SCRIPT), *options], env=environment, check=True, timeout=240)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_every_cell_is_measured_on_both_sides(document: dict[str, Any]) -> None:
    assert [row["status"] for row in document["cells"]] == ["measured"] * len(document["cells"])
    for row in document["cells"]:
        trainer, plain = (row["step_time_s_median"][side] for side in ("trainer", "plain"))
        assert row["trainer_over_plain"] == pytest.approx(trainer / plain)
        # Both train on the same text: the losses differ by the first weights and the draws.
        losses = row["last_loss"]
        assert losses["trainer"] == pytest.approx(losses["plain"], rel=0.1)
        assert max(losses.values()) < math.log(512)  # below a uniform guess over the vocabulary


def test_the_device_is_described(document: dict[str, Any]) -> None:
    device = document["device"]
    assert device["type"] == "cpu"
    assert device["bf16_peak_tflops"] == device["bf16_matmul_tflops_measured"]
    assert "measured" in device["bf16_peak_source"]


def test_flops_are_those_of_the_model(document: dict[str, Any]) -> None:
    from frontrunner.spaces.model import Model

    model = Model(
        name="tiny", layers=2, hidden=64, heads=2, kv_heads=2, ffn_hidden=256, vocabulary=512,
        positions="learned", activation="gelu", norm="layernorm", tied_embeddings=True,
    )  # fmt: skip
    row = document["cells"][0]
    expected = row["tokens_per_s"]["trainer"] * model.model_flops_per_token(64) / 1e12
    assert row["model_tflops"]["trainer"] == pytest.approx(expected)


def test_peaks_are_those_of_the_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from one_device import BF16_PEAKS

    presets = tomllib.loads((ROOT / "spaces" / "preset_data" / "devices.toml").read_text())
    for words, _, tflops, _ in BF16_PEAKS:
        known = [preset for preset in presets.values() if words[0] in preset["matches"] and len(words) == 1]
        assert all(preset["peak_tflops"]["bf16"] == tflops for preset in known)
        assert known or len(words) > 1
