"""How long dry runs take: `frontrunner dryrun` as a process, over recipes of very different shapes.

Run with `python benchmarks/dry_run_times.py [--json OUT] [--only WORD]`. No device is needed. Aimed
at: under 30 s for 175B on 1,024 devices with a pipeline, under 2 minutes for any recipe.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recipe of a preset model on so many Frontier nodes of 8 devices; `space` has one value a
    dimension.
    """

    name: str
    model: str
    nodes: int
    global_batch: int
    space: dict[str, Any]

    def campaign(self) -> str:
        """The campaign file whose only recipe it is."""
        space = "\n".join(f"{key} = {json.dumps(value)}" for key, value in self.space.items())
        return (
            f'[model]\npreset = "{self.model}"\n[cluster]\npreset = "frontier"\nnodes ='
            f" {self.nodes}\n[problem]\nsequence_length = 2048\nglobal_batch ="
            f" {self.global_batch}\n[space]\n{space}\n"
        )


def pipeline(tensor: int, stages: int, **others: Any) -> dict[str, Any]:
    """A pipeline with tensor and sequence parallelism in its stages."""
    return {
        "tensor_parallel": tensor,
        "pipeline_parallel": stages,
        "sequence_parallel": True,
        **others,
    }


CASES = (
    Case(name="22B, ZeRO-3, no other parallelism", model="frontier-22b", nodes=8, global_batch=64,
         space={"sharding": "zero-3", "recompute": "full"}),
    Case(name="22B, 32 micro-batches", model="frontier-22b", nodes=8, global_batch=512,
         space={"tensor_parallel": 4, "sharding": "zero-1"}),
    Case(name="22B, context 2, tensor 8, three levels", model="frontier-22b", nodes=32,
        global_batch=64,
         space={"tensor_parallel": 8, "context_parallel": 2, "sharding": "3-level-2/8",
             "recompute": "selective"}),
    Case(name="175B, 1F1B", model="frontier-175b", nodes=128, global_batch=640,
         space=pipeline(8, 16, sharding="zero-1")),
    Case(name="175B, ZeRO-3 in the pipeline", model="frontier-175b", nodes=128, global_batch=640,
         space=pipeline(8, 16, sharding="zero-3", recompute="full")),
    Case(name="175B, interleaved, 6 virtual stages", model="frontier-175b", nodes=128,
        global_batch=640,
         space=pipeline(8, 16, schedule="interleaved-1f1b", virtual_stages=6, sharding="zero-1")),
    Case(name="175B, ZBV", model="frontier-175b", nodes=128, global_batch=640,
         space=pipeline(8, 16, schedule="zbv", virtual_stages=2, sharding="none")),
    Case(name="175B, GPipe, 80 micro-batches", model="frontier-175b", nodes=128, global_batch=640,
         space=pipeline(8, 16, schedule="gpipe", sharding="zero-1", recompute="full")),
    Case(name="1T, 64 stages", model="frontier-1t", nodes=384, global_batch=1536,
         space=pipeline(8, 64, sharding="zero-1", recompute="full")),
    Case(name="1T, tensor 8, ZeRO-3", model="frontier-1t", nodes=384, global_batch=384,
         space={"tensor_parallel": 8, "sequence_parallel": True, "sharding": "zero-3",
             "recompute": "full"}),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """One dry run: seconds as a process, and the peak of the fullest rank traced, or why there is
    none.
    """

    name: str
    seconds: float
    peak_gib: float | None
    error: str


def run(case: Case, folder: Path) -> Run:
    """Trace one recipe in a process of its own."""
    file = folder / "campaign.toml"
    file.write_text(case.campaign())
    command = [
        sys.executable,
        "-P",
        "-m",
        "frontrunner.cli",
        "dryrun",
        "--campaign",
        str(file),
        "--json",
    ]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        return Run(
            name=case.name,
            seconds=seconds,
            peak_gib=None,
            error=done.stderr.strip().splitlines()[-1],
        )
    told = json.loads(done.stdout)
    peak = max(sum(rank["memory_bytes"].values()) for rank in told["ranks"]) / 2**30
    return Run(name=case.name, seconds=seconds, peak_gib=peak, error="")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if arguments.only in case.name:
                found.append(run(case, Path(folder)))
                last = found[-1]
                peak = last.error if last.peak_gib is None else f"{last.peak_gib:8.2f} GiB"
                print(f"{last.name:42} {last.seconds:7.1f} s  {peak}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=2))


if __name__ == "__main__":
    main()
