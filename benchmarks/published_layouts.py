"""Where layouts that NVIDIA publishes for Mixtral on H100 stand among all that `plan` estimates.

    python benchmarks/published_layouts.py

* Mixtral 8x7B on 32 H100: the example of Megatron-LM's README of its MoE (megatron/core/transformer/moe/README.md).
* Mixtral 8x22B on 128 H100: the best layouts that arXiv 2504.14960 found (table 3), with experts folded apart from
  attention, and with one tensor-parallel degree for both. It states degrees, but neither schedule nor recompute.

Tokens are dealt evenly, as in that paper's layers, which drop those beyond a capacity of 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FILE = """
name = "published"
[model]
preset = "{model}"
routing = "uniform"
[cluster]
preset = "dgx-h100"
nodes = {nodes}
[problem]
sequence_length = 4096
global_batch = {batch}
precision = "bf16"
[software]
code = "{code}"
[space]
tensor_parallel = [1, 2, 4, 8]
pipeline_parallel = [1, 2, 4, 8]
virtual_stages = [1, 2, 4, 7]
schedule = ["1f1b", "interleaved-1f1b"]
micro_batch_seqs = [1, 2]
sharding = ["zero-1", "zero-3"]
sequence_parallel = [true, false]
recompute = ["none", "selective", "full"]
expert_parallel = [1, 2, 4, 8]
expert_tensor_parallel = [1, 2, 4]
"""
README = {"tensor_parallel": 1, "pipeline_parallel": 4, "expert_parallel": 8, "micro_batch_seqs": 1}
FOLDED = {"tensor_parallel": 2, "pipeline_parallel": 8, "expert_parallel": 8, "expert_tensor_parallel": 1}
ALIKE = FOLDED | {"expert_parallel": 4, "expert_tensor_parallel": 2}
PROBLEMS: dict[tuple[str, int, int], dict[str, dict[str, Any]]] = {
    ("mixtral-8x7b", 4, 128): {"README": README | {"sharding_name": "zero-1", "schedule": "1f1b", "recompute": "none"},
                               "README's degrees": README},
    ("mixtral-8x22b", 16, 256): {"folded": FOLDED, "one degree": ALIKE},
}  # fmt: skip


def estimates(model: str, nodes: int, batch: int, code: str) -> dict[str, Any]:
    """What `plan` prints of every recipe."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "published.toml"
        path.write_text(FILE.format(model=model, nodes=nodes, batch=batch, code=code))
        command = [sys.executable, "-m", "frontrunner", "plan", str(path), "--json", "--top", "1000000"]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return found


def line(name: str, place: int, found: dict[str, Any], first: dict[str, Any]) -> str:
    """One recipe, its place and how much slower it is than the first."""
    recipe = found["recipe"]
    degrees = " ".join(
        f"{word}{recipe[key]}"
        for word, key in (("tp", "tensor_parallel"), ("pp", "pipeline_parallel"), ("v", "virtual_stages"),
                          ("mb", "micro_batch_seqs"), ("ep", "expert_parallel"), ("etp", "expert_tensor_parallel"))
    )  # fmt: skip
    slower = found["step_time_s"] / first["step_time_s"] - 1
    return (
        f"  {name:18} {place:5,}  {degrees} {recipe['sharding_name']} recompute={recipe['recompute']}"
        f"  {found['step_time_s']:.2f} s (+{slower:.1%}), MFU {found['mfu']:.1%}"
    )


def main() -> None:
    """Print the first recipe of each problem, and the fastest that has each published layout's choices."""
    for (model, nodes, batch), layouts in PROBLEMS.items():
        for code in ("megatron-lm", "frontrunner"):
            plan = estimates(model, nodes, batch, code)
            rows = plan["estimates"]
            print(
                f"{model}, {nodes} nodes, {batch} sequences, code {code}: {plan['fitting']:,} of {plan['legal']:,} fit"
            )
            print(line("first", 1, rows[0], rows[0]))
            for name, chosen in layouts.items():
                places = [n for n, row in enumerate(rows) if all(row["recipe"][key] == chosen[key] for key in chosen)]
                print(line(name, places[0] + 1, rows[places[0]], rows[0]))


if __name__ == "__main__":
    main()
