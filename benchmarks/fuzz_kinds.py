"""The kinds of input that frontrunner reads: good ones to begin with, and what a command does with
each.

A reader takes the path of one input and does what the command does with it. What it accepts it also
writes and reads again: `NotTheSame` is raised where another value comes back.
"""

from __future__ import annotations

import json
import math
import random
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuzz_damage import damaged, tree_damaged

from frontrunner.config.campaign import parse_campaign, read_campaign_file, read_cluster_file
from frontrunner.config.recipe_file import (
    Origin,
    RecipeFile,
    Training,
    content_hash,
    from_text,
    to_text,
)
from frontrunner.config.recipe_file import read as read_recipe_file
from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.evaluators.programs.ranks import harvest
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.evaluators.runs.run_folder import RunFolder, StepCounter
from frontrunner.evaluators.tables.rows import read_problems
from frontrunner.evaluators.tables.workloads import read as read_workloads
from frontrunner.evaluators.tables.workloads import samples_of_tables
from frontrunner.exchange import import_config, import_table
from frontrunner.results.outcome import Failure, FailureKind, Outcome
from frontrunner.results.rows import outcome_to_columns
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.validation import dump_json, load_json

ROOT = Path(__file__).parents[1]
CAMPAIGN_TOML = b"""\
name = "small"
[model]
layers = 12
hidden = 256
heads = 8
kv_heads = 4
ffn_hidden = 512
vocabulary = 1000
activation = "swiglu"
norm = "rmsnorm"
[cluster]
device = "test"
backend = "cuda"
nodes = 4
devices_per_node = 4
memory_gib_per_device = 16.0
[problem]
sequence_length = 256
global_batch = [1, 4096]
precision = "bf16"
[space]
tensor_parallel = [1, 2, 4]
pipeline_parallel = [1, 2]
micro_batch_seqs = [1, 2]
"""
TABLE = b"""\
model,layers,hidden,heads,ffn_hidden,seq,vocab,hardware,gpus,gpus_per_node,tp,pp,mbs,gbs,zero,recompute,precision,step_time_s,peak_mem_gb,status
gpt-1.3B,24,2048,16,8192,1024,51200,A100-80GB,8,8,2,1,1,64,1,full,fp16,1.5,20,ok
gpt-1.3B,24,2048,16,8192,1024,51200,A100-80GB,8,8,1,1,2,64,1,none,fp16,1.25,31.5,ok
gpt-1.3B,24,2048,16,8192,1024,51200,A100-80GB,8,8,1,1,8,64,1,none,fp16,,,oom
gpt-1.3B,24,2048,16,8192,1024,51200,A100-80GB,16,8,1,2,2,64,0,none,bf16,0.9,,ok
"""
RECIPES = (
    Recipe(devices=8, tensor_parallel=2, micro_batch_seqs=2, accumulation=4,
        sharding=Sharding.named("zero-1", 4)),
    Recipe(
        devices=16, tensor_parallel=2, pipeline_parallel=2, schedule="1f1b", micro_batch_seqs=1,
        accumulation=8,
        recompute="full", sequence_parallel=True, engine="deepspeed",
    ),
    Recipe(devices=4, micro_batch_seqs=4, accumulation=1, sharding=Sharding.named("zero-3", 4)),
)  # fmt: skip


class NotTheSame(Exception):
    """What was accepted is another value after it was written and read."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of input: the file's name, how a bad one is made, and what a command does with it.

    `refuses` is False for what a driver finds in run folders: it never complains about it, and
    takes a damaged file for none. `setting` is put beside each input.
    """

    file: str
    make: Callable[[random.Random], bytes]
    read: Callable[[Path], None]
    refuses: bool = True


def _spec() -> CampaignSpec:
    return parse_campaign(tomllib.loads(CAMPAIGN_TOML.decode()), default_name="x", base=Path()).spec


SPEC = _spec()
PROBLEM: Problem = SPEC.problem


def kinds(folder: Path) -> dict[str, Kind]:
    """Every kind by its name; `folder` gets the files that stand beside all inputs."""
    campaign = folder / "campaign.toml"
    campaign.write_bytes(CAMPAIGN_TOML)
    found = {
        "campaign": Kind(file="input.toml", make=_from(_campaigns()), read=read_a_campaign),
        "cluster": Kind(file="cluster.toml", make=_from([_cluster()]), read=read_a_cluster),
        "recipe": Kind(file="recipe.json", make=a_recipe_file, read=read_a_recipe),
        "import": Kind(file="table.csv", make=_from([TABLE]), read=import_a_table),
        "table": Kind(file="table.csv", make=_from([TABLE]), read=read_a_table),
        "fit": Kind(file="table.csv", make=_from([TABLE]), read=read_a_table_to_fit),
        "archive": Kind(file="campaign.jsonl", make=an_archive(), read=read_an_archive),
        "outcome": Kind(
            file="outcome.json", make=_of_trees(_outcomes()), read=read_an_outcome, refuses=False
        ),
        "result": Kind(
            file="result.json", make=_of_trees([_result()]), read=harvest_a_result, refuses=False
        ),
        "rank": Kind(
            file="rank-0.error.json", make=_from([_rank_files()]), read=read_a_rank, refuses=False
        ),
        "log": Kind(file="command.log", make=_from([LOG]), read=read_a_log, refuses=False),
        "http": Kind(
            file="body.json", make=_of_trees(_bodies()), read=asking(folder), refuses=False
        ),
    }
    for tool in TOOLS:
        found[tool] = Kind(
            file="configuration", make=_from(_configurations(tool)), read=_importing(tool, campaign)
        )
    return found


def _from(good: list[bytes]) -> Callable[[random.Random], bytes]:
    return lambda rng: damaged(rng.choice(good), rng)


def _of_trees(good: list[Any]) -> Callable[[random.Random], bytes]:
    """JSON whose tree is damaged, or whose bytes are."""

    def make(rng: random.Random) -> bytes:
        document = json.loads(json.dumps(rng.choice(good)))
        if rng.random() < 0.3:
            return damaged(json.dumps(document).encode(), rng)
        for _ in range(rng.choice((1, 1, 2, 4))):
            document = tree_damaged(document, rng)
        return json.dumps(document).encode()

    return make


# Campaign and cluster files.


def _campaigns() -> list[bytes]:
    examples = [
        path.read_bytes()
        for path in sorted((ROOT / "examples").glob("*.toml"))
        if "command" not in path.name
    ]
    whole = (
        CAMPAIGN_TOML
        + b"""\
[search]
strategy = "random"
seed = 3
[budget]
probes = 8
node_hours = 1.5
[probe]
warm_up_steps = 2
deadline_s = 60.0
[command]
trainer = "megatron-lm"
arguments = ["python", "train.py", "{tensor_parallel}"]
[store]
url = "store.db"
"""
    )
    return [CAMPAIGN_TOML, whole, *examples]


def read_a_campaign(path: Path) -> None:
    found = read_campaign_file(path)
    text = dump_json(found.spec)
    _same(found.spec, load_json(CampaignSpec, text, what="a stored specification"))


def _cluster() -> bytes:
    begin = CAMPAIGN_TOML.index(b"[cluster]")
    return CAMPAIGN_TOML[begin : CAMPAIGN_TOML.index(b"[problem]")]


def read_a_cluster(path: Path) -> None:
    read_cluster_file(path)


# Recipe files.


def _recipe_file(recipe: Recipe) -> RecipeFile:
    origin = Origin(
        written_by="frontrunner 0.1",
        written_at="2026-03-01T00:00:00+00:00",
        measured_with={"torch": "2"},
    )
    identity = recipe_id(PROBLEM, recipe)
    return RecipeFile(
        recipe_id=identity,
        problem=PROBLEM,
        recipe=recipe,
        training=Training(),
        measured=None,
        origin=origin,
    )


RECIPE_FILES = [
    to_text(_recipe_file(recipe)) for recipe in RECIPES if why_illegal(recipe, PROBLEM) is None
]


def a_recipe_file(rng: random.Random) -> bytes:
    """A damaged recipe file, most often with the hash that its damaged content has."""
    text = rng.choice(RECIPE_FILES)
    if rng.random() < 0.4:
        return damaged(text.encode(), rng)
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 4))):
        document = tree_damaged(document, rng)
    if isinstance(document, dict) and isinstance(document.get("content"), dict):
        document["hash"] = content_hash_or_none(document["content"])
    return json.dumps(document).encode()


def content_hash_or_none(content: dict[str, Any]) -> str | None:
    try:
        return content_hash(content)
    except ValueError:  # a NaN has no canonical form
        return None


def read_a_recipe(path: Path) -> None:
    found = read_recipe_file(path)
    _same(found, from_text(to_text(found)))


# Tables.


def import_a_table(path: Path) -> None:
    import_table(path, store=str(path.parent / "store.db"), preview=True)


def read_a_table(path: Path) -> None:
    for problem in read_problems(path).problems:
        for row in problem.rows:
            _storable(row.outcome)


def read_a_table_to_fit(path: Path) -> None:
    for sample in samples_of_tables([read_workloads(path)], None).samples:
        if not all(map(math.isfinite, sample.step_time_s)):
            raise NotTheSame(f"a step time that is no number: {sample.step_time_s}"[:200])


def _storable(outcome: Outcome) -> None:
    """The outcome as columns of the store, which takes finite numbers only."""
    columns = outcome_to_columns(outcome)
    for value in columns.values():
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
            raise NotTheSame(f"{value} is no number that a database holds")


# Configurations of other tools.


def _configurations(tool: str) -> list[bytes]:
    texts = [
        TOOLS[tool].render(PROBLEM, recipe, ("a header",)).encode()
        for recipe in RECIPES
        if TOOLS[tool].why_not(PROBLEM, recipe) is None and why_illegal(recipe, PROBLEM) is None
    ]
    if not texts:
        raise ValueError(f"no recipe here can be told {tool}")
    return texts


def _importing(tool: str, campaign: Path) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        found = import_config(path, tool=tool, campaign=campaign)
        if found.file is not None:
            _same(found.file, from_text(to_text(found.file)))

    return read


# What probes leave in their run folders.


def _setup(folder: Path) -> ProbeSetup:
    return ProbeSetup(problem=PROBLEM, probe=SPEC.probe, data=SPEC.data, work_folder=folder, seed=0)


def _outcomes() -> list[Any]:
    measured = simulate(RECIPES[0], _setup(Path()))
    failed = Failure(
        kind=FailureKind.CRASHED, message="it crashed", log_tail="the end", node_seconds=2.0
    )
    kept = {"kind": "measurement", "outcome": {**asdict(measured), "ended": "known"}}
    return [kept, {"kind": "failure", "outcome": asdict(failed)}]


def read_an_outcome(path: Path) -> None:
    folder = RunFolder(path.parent)
    outcome = folder.outcome()
    if outcome is not None:
        _storable(outcome)
        folder.write_outcome(outcome)
        _same(outcome, folder.outcome())


def _result() -> Any:
    return {
        "status": "measured", "step_times_s": [0.5, 0.51, 0.5], "peak_memory_bytes": [2**30] * 8,
        "losses": [7.0, 6.9, 6.8, 6.7], "build_time_s": 1.0, "first_step_time_s": 0.9,
        "ended": "known",
        "overflowed_steps": [],
    }  # fmt: skip


def harvest_a_result(path: Path) -> None:
    order = ProbeOrder(token="1.1", recipe=RECIPES[0], run_folder=path.parent)
    outcome = harvest(order, _setup(path.parent))
    if outcome is not None:
        _storable(outcome)
        _same(outcome, RunFolder(path.parent).outcome())


def _rank_files() -> bytes:
    error = {"rank": 0, "type": "ValueError", "message": "no", "phase": "stepping"}
    events = [{"event": "built", "rank": 0}, {"event": "step", "number": 1, "time_s": 0.5}]
    return "\n".join(json.dumps(table) for table in (error, *events)).encode() + b"\n"


def read_a_rank(path: Path) -> None:
    """The same bytes as the error of a rank, its progress and its log."""
    from frontrunner.evaluators.runs.files import tail

    folder = RunFolder(path.parent)
    for name in ("progress.jsonl", "rank-0.log"):
        (path.parent / name).write_bytes(path.read_bytes())
    for error in folder.errors(1):
        if not all(isinstance(text, str) for text in (error.type, error.message, error.phase)):
            raise NotTheSame(f"an error of other types: {error!r}"[:200])
    tail(folder.log(0))
    StepCounter(path.parent).advance()


LOG = b"""\
using world size: 8, data-parallel size: 4, tensor-model-parallel size: 2, pipeline-model-parallel size: 1
  micro_batch_size ........................... 2
  global_batch_size .......................... 32
 iteration       43/     100 | consumed samples: 5504 | elapsed time per iteration (ms): 501.5 | \
global batch size:    32 | lm loss: 7.03E+00 | number of skipped iterations:   0 | number of nan iterations:   0 |
 iteration       44/     100 | consumed samples: 5632 | elapsed time per iteration (ms): 499.5 | lm loss: 6.9E+00 |
[Rank 0] (after 44 iterations) memory (MB) | allocated: 3.5 | max allocated: 9105.25 | reserved: 2
[2026-11-22 03:15:40] [INFO] [Rank 0] step=3, skipped=0, lr=[0.0003], mom=[(0.9, 0.999)]
epoch=0/micro_step=12/global_step=3, RunningAvgSamplesPerSec=64.1, CurrSamplesPerSec=64.0, MaxMemAllocated=1.1GB
steps: 10 loss: 2.3032 iter time (s): 0.123 samples/sec: 65.041
[rank0]:\x1b[32m[titan] - INFO - step: 15  loss:  3.10680  memory: 20.11GiB(50%)  tps: 1,234  mfu: 5%\x1b[39m
iteration: 5 / 100 | consumed_tokens: 5.2M | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 85.8K | lm_loss: 3 |
Training epoch 0, iteration 120/149 | global_batch_size: 1 | peak_memory_usage: 1e9 | train_step_timing in s: 0.4
 40%|####      | 4/10 [00:02<00:03,  1.9it/s]
{'loss': 2.5, 'grad_norm': 1.0}
[rank1]: torch.OutOfMemoryError: out of memory
ValueError: tensor parallel size 2 does not divide 3 heads
"""  # noqa: E501


def read_a_log(path: Path) -> None:
    from frontrunner.evaluators.programs.command import why_disagreeing
    from frontrunner.evaluators.programs.command_log import UNLIMITED, Log
    from frontrunner.evaluators.programs.command_watch import exceptions
    from frontrunner.evaluators.programs.logs import (
        LogReader,
        patterns_of,
        timed,
        verdict,
        why_inconsistent,
    )
    from frontrunner.evaluators.programs.trainers import LOG_PATTERNS
    from frontrunner.evaluators.runs.files import tail

    recipe, content = RECIPES[0], path.read_bytes()
    size = len(content)
    written = Log(path, UNLIMITED)
    written.write(content)
    written.close()
    tool = sorted(LOG_PATTERNS)[size % len(LOG_PATTERNS)]
    log = LogReader(path.parent, patterns_of(LOG_PATTERNS[tool]))
    log.read_all()
    steps = timed(log.steps, recipe, PROBLEM)
    verdict(steps, SPEC.probe, best_step_time_s=None, spent_s=1.0)
    why_disagreeing(log.statements, recipe, PROBLEM)
    why_inconsistent(steps, recipe, PROBLEM)
    exceptions(tail(path, 400, 262_144), "starting")


# Archives.


def an_archive() -> Callable[[random.Random], bytes]:
    """Archives of a small campaign, most often with the hashes that the damaged lines have."""
    from fuzz_archives import WHOLE, rechained

    lines = WHOLE.read_bytes().splitlines(keepends=True)

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.3:
            return damaged(b"".join(lines), rng)
        return rechained([json.loads(line) for line in lines], rng)

    return make


def read_an_archive(path: Path) -> None:
    from fuzz_archives import imported

    imported(path)


# Bodies of requests.


def _bodies() -> list[Any]:
    from frontrunner.server.requests import LAPTOP

    small = {"space": {"tensor_parallel": [1], "micro_batch_seqs": [1]}, "top": 1}
    return [{**LAPTOP, **small}]


def asking(folder: Path) -> Callable[[Path], None]:
    from fuzz_service import service

    return service(folder)


def _same(first: object, second: object) -> None:
    if first != second and repr(first) != repr(second):  # a NaN differs from itself
        raise NotTheSame(f"{first!r} came back as {second!r}"[:600])
