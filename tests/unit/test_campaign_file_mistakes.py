"""Every mistake in a campaign file ends in one message: its key, the value, and what was
expected.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from frontrunner.config.campaign import read_campaign_file
from frontrunner.config.toml_file import MAX_FILE_BYTES
from frontrunner.spaces.errors import FrontrunnerError, NotFound
from support.campaign_files import campaign_toml, surveyed, written

FOREIGN_WORDS = re.compile(
    r"pydantic|valid(ation|ator)|dataclass|tuple|NoneType|dict|traceback|\b(int|str|float|bool|None|True|False)\b"
)
"""What a person who writes TOML has never heard of."""


def complaint(path: Path) -> FrontrunnerError:
    """The error of a file that is read and whose space is looked at."""
    with pytest.raises(FrontrunnerError) as caught:
        surveyed(path)
    assert caught.value.exit_code == 2
    text = f"{caught.value.message} {caught.value.hint or ''}"
    assert not FOREIGN_WORDS.search(text.replace(str(path.parent), "")), text
    return caught.value


# What is changed in a valid file (None: left out), what the message must say, and what the hint
# must hold.
CASES: dict[str, tuple[dict[str, str | None], str, str | None]] = {
    # Unknown sections and keys
    "unknown section": ({"modle.x": "1"}, "unknown section [modle]", "did you mean 'model'?"),
    "unknown section far from any": (
        {"zzz.x": "1"},
        "unknown section [zzz]",
        "known: budget, cluster, command, data",
    ),
    "unknown key at the top": (
        {"evaluatr": '"probe"'},
        'unknown key evaluatr = "probe"',
        "did you mean 'evaluator'?",
    ),
    "unknown model key": (
        {"model.layer": "4"},
        "unknown key model.layer = 4",
        "did you mean 'layers'?",
    ),
    "unknown space key": (
        {"space.acumulation": "[1]"},
        "unknown key space.acumulation = [1]",
        "'accumulation'",
    ),
    "unknown space key, one value": (
        {"space.shard": '"x"'},
        'unknown key space.shard = "x"',
        "'sharding'",
    ),
    "unknown budget key": (
        {"budget.probe": "3"},
        "unknown key budget.probe = 3",
        "did you mean 'probes'?",
    ),
    "unknown nested key": (
        {"cluster.links": "{ nic = 1 }"},
        "unknown key cluster.links.nic = 1",
        "nic_gb_per_s",
    ),
    "unknown precision": (
        {"cluster.peak_tflops": "{ fp4 = 1 }"},
        "unknown key cluster.peak_tflops.fp4 = 1",
        "did you mean",
    ),
    "key of another section": (
        {"problem.nodes": "4"},
        "unknown key problem.nodes = 4",
        "nodes belongs in [cluster]",
    ),
    "key of no section": (
        {"problem.evaluator": "1"},
        "unknown key problem.evaluator = 1",
        "above the first [section]",
    ),
    "a section in a section": (
        {"problem.model": "{ layers = 1 }"},
        "unknown key problem.model = {layers = 1}",
        None,
    ),
    "control characters in a key": (
        {'model."a\\u001b[2J"': "1"},
        'unknown key model."a\\u001b[2J" = 1',
        None,
    ),
    "a long name": (
        {"model.name": f'"{"x" * 201}"'},
        "expected at most 200 characters, none",
        None,
    ),
    "an escape in a name": (
        {"cluster.name": '"a\\u001b[2J"'},
        'cluster.name = "a\\u001b[2J": expected at most',
        None,
    ),
    "a NUL in a name": ({"model.name": '"a\\u0000"'}, "none a control character", None),
    # What nothing would use
    "settings of another strategy": (
        {"search.strategy": '"random"', "search.deephyper.kappa": "3"},
        'search.deephyper.kappa = 3.0: expected no such entry with search.strategy = "random"',
        None,
    ),
    "settings of another acquisition": (
        {"search.strategy": '"deephyper"', "search.deephyper.xi": "3"},
        (
            'search.deephyper.xi = 3.0: expected no such entry with acquisition = "UCBd": it is of'
            " EI and PI"
        ),
        None,
    ),
    # Values of another type
    "text for a number": (
        {"model.layers": '"4"'},
        'model.layers = "4": expected a whole number',
        None,
    ),
    "decimal number for a whole one": (
        {"model.layers": "4.5"},
        "model.layers = 4.5: expected a whole number",
        None,
    ),
    "whole decimal number": (
        {"model.layers": "4.0"},
        "model.layers = 4.0: expected a whole number",
        None,
    ),
    "truth for a number": (
        {"model.layers": "true"},
        "model.layers = true: expected a whole number",
        None,
    ),
    "truth for a rate": (
        {"cluster.memory_gb_per_s": "true"},
        "memory_gb_per_s = true: expected a number",
        None,
    ),
    "list for a number": (
        {"model.layers": "[4]"},
        "model.layers = [4]: expected a whole number",
        None,
    ),
    "table for a number": (
        {"model.layers": "{ a = 1 }"},
        "model.layers = {a = 1}: expected a whole number",
        None,
    ),
    "date for a number": (
        {"model.layers": "1979-05-27"},
        "model.layers = 1979-05-27: expected a whole number",
        None,
    ),
    "time for a number": (
        {"model.layers": "07:32:00"},
        "model.layers = 07:32:00: expected a whole number",
        None,
    ),
    "date in a list": (
        {"space.devices": "[1979-05-27]"},
        "space.devices = 1979-05-27: expected a whole number",
        None,
    ),
    "date for text": (
        {"model.name": "1979-05-27"},
        "model.name = 1979-05-27: expected text in quotes",
        None,
    ),
    "number for text": (
        {"model.positions": "3"},
        "model.positions = 3: expected text in quotes",
        None,
    ),
    "number for truth": (
        {"model.tied_embeddings": "1"},
        "tied_embeddings = 1: expected true or false",
        None,
    ),
    "text for truth": (
        {"space.sequence_parallel": '"yes"'},
        'sequence_parallel = "yes": expected true or false',
        None,
    ),
    "text where nothing is allowed too": (
        {"budget.probes": '"x"'},
        'budget.probes = "x": expected a whole',
        None,
    ),
    "truth where nothing is allowed too": (
        {"model.max_positions": "true"},
        "max_positions = true: expected a",
        None,
    ),
    "number for a table": (
        {"cluster.links": "3"},
        "cluster.links = 3: expected a table of keys and values",
        None,
    ),
    "list for a table": (
        {"cluster.links": "[3]"},
        "cluster.links = [3]: expected a table of keys and values",
        None,
    ),
    "text in a table": (
        {"cluster.peak_tflops": '{ fp32 = "x" }'},
        'cluster.peak_tflops.fp32 = "x": expected a',
        None,
    ),
    "part of a port": (
        {"cluster.links": "{ nics_per_node = 1.5 }"},
        "links.nics_per_node = 1.5: expected a whole",
        None,
    ),
    "text in a list": (
        {"space.tensor_parallel": '[1, "2"]'},
        'space.tensor_parallel = "2": expected a whole',
        None,
    ),
    "truth in a list": (
        {"space.tensor_parallel": "[1, true]"},
        "tensor_parallel = true: expected a whole",
        None,
    ),
    "decimal number in a list": (
        {"space.tensor_parallel": "[2.0]"},
        "tensor_parallel = 2.0: expected a whole",
        None,
    ),
    "list in a list": (
        {"space.tensor_parallel": "[[1]]"},
        "tensor_parallel = [1]: expected a whole number",
        None,
    ),
    "number for a section": ({"data": "3"}, "data = 3: expected a section: [data]", None),
    "number for a name": ({"name": "3"}, "name = 3: expected text in quotes", None),
    "long text": (
        {"model.layers": f'"{"x" * 10_000}"'},
        f'model.layers = "{"x" * 76}...: expected a whole',
        None,
    ),
    # Missing
    "missing layers": ({"model.layers": None}, "model.layers is missing from [model]", None),
    "missing devices": (
        {"cluster.devices_per_node": None},
        "devices_per_node is missing from [cluster]",
        None,
    ),
    "missing batch": (
        {"problem.global_batch": None},
        "problem.global_batch is missing from [problem]",
        None,
    ),
    "missing positions": (
        {"model.positions": '"learned"'},
        "model.max_positions is missing: expected the",
        None,
    ),
    # Out of range
    "zero": ({"model.layers": "0"}, "model.layers = 0: expected at least 1", None),
    "negative": ({"model.heads": "-8"}, "model.heads = -8: expected at least 1", None),
    "negative memory": (
        {"cluster.memory_gib_per_device": "-1"},
        "memory_gib_per_device = -1.0: expected a size",
        None,
    ),
    "not a number": (
        {"cluster.memory_gib_per_device": "nan"},
        "memory_gib_per_device = nan: expected a finite",
        None,
    ),
    "infinite": ({"budget.minutes": "inf"}, "budget.minutes = inf: expected a finite number", None),
    "beyond any float": (
        {"probe.deadline_s": "1e999"},
        "probe.deadline_s = inf: expected a finite number",
        None,
    ),
    "not a number, in a list": (
        {"space.devices": "[nan]"},
        "space.devices = nan: expected a finite number",
        None,
    ),
    "huge number": (
        {"model.layers": "1" + "0" * 30},
        "expected a number of at most 2147483647",
        None,
    ),
    "huge decimal number": (
        {"cluster.memory_gib_per_device": "1e308"},
        "expected a number of at most 2147483647",
        None,
    ),
    "huge seed": (
        {"search.seed": "4294967296"},
        "search.seed = 4294967296: expected a number of at most",
        None,
    ),
    "too many devices": (
        {"cluster.nodes": "1000000"},
        "cluster.nodes = 1000000: expected at most 1,000,000",
        None,
    ),
    "no probes": (
        {"budget.probes": "0"},
        "budget.probes = 0: expected a number above 0, or no entry",
        None,
    ),
    "one step to judge by": (
        {"probe.min_measured_steps": "1"},
        "probe.min_measured_steps = 1: expected at least 2",
        None,
    ),
    "fewer steps than are needed": (
        {"probe.max_steps": "3"},
        "probe.max_steps = 3: expected at least probe.warm_up_steps + probe.min_measured_steps = 5",
        None,
    ),
    "a precision in percent": (
        {"probe.precision": "3.0"},
        "probe.precision = 3.0: expected a share above 0 and below 1",
        None,
    ),
    "no measured step": (
        {"probe.measured_steps": "0"},
        "probe.measured_steps = 0: expected at least 1",
        None,
    ),
    "no time": (
        {"probe.step_deadline_s": "0"},
        "probe.step_deadline_s = 0.0: expected a number above 0",
        None,
    ),
    "no bandwidth": (
        {"cluster.links": "{ nic_gb_per_s = 0 }"},
        "cluster.links.nic_gb_per_s = 0.0: expected",
        None,
    ),
    "heads do not divide": (
        {"model.heads": "7"},
        "model.heads = 7: expected a divisor of model.hidden = 128",
        None,
    ),
    "kv heads do not divide": (
        {"model.kv_heads": "3"},
        "model.kv_heads = 3: expected a divisor of model.heads",
        None,
    ),
    "too long": (
        {"model.positions": '"learned"', "model.max_positions": "64"},
        "problem.sequence_length = 128: expected at most model.max_positions = 64",
        None,
    ),
    # Words that are not known
    "precision": (
        {"problem.precision": '"fp8"'},
        'problem.precision = "fp8": expected one of fp32, bf16, fp16',
        "space.fp8",
    ),
    "backend": (
        {"cluster.backend": '"gpu"'},
        'cluster.backend = "gpu": expected one of cpu, cuda',
        None,
    ),
    "strategy": (
        {"search.strategy": '"randm"'},
        'search.strategy = "randm": expected one of',
        "did you mean 'random'?",
    ),
    "objective": (
        {"search.objectives": '["tokens", "memroy"]'},
        (
            'search.objectives = ["tokens", "memroy"]: expected "tokens", alone or with "memory"'
            ' and "nodes", each once'
        ),
        "did you mean 'memory'?",
    ),
    "objectives that a strategy does not seek": (
        {"search.strategy": '"random"', "search.objectives": '["tokens", "nodes"]'},
        (
            'search.objectives = ["tokens", "nodes"]: expected what search.strategy = "random"'
            " searches for: tokens"
        ),
        "search.strategy = guided searches for these",
    ),
    "an objective without a list": (
        {"search.objectives": '"tokens"'},
        'search.objectives = "tokens": expected',
        None,
    ),
    "evaluator": (
        {"evaluator": '"simulate"'},
        'evaluator = "simulate": expected a known',
        "did you mean 'simulated'?",
    ),
    "schedule": (
        {"space.schedule": '["1f1bb"]'},
        'space.schedule = "1f1bb": expected one of',
        "did you mean '1f1b'?",
    ),
    "sharding": (
        {"space.sharding": '["zero-9"]'},
        'space.sharding = "zero-9": expected one of',
        "did you mean 'zero-",
    ),
    "sharding of another type": (
        {"space.sharding": "[1]"},
        "space.sharding = 1: expected text in quotes",
        None,
    ),
    "model preset": (
        {"model.preset": '"gpt2-smal"'},
        'model.preset = "gpt2-smal": expected a',
        "did you mean 'gpt2-small'?",
    ),
    "cluster preset": (
        {"cluster.preset": '"this-machin"'},
        'cluster.preset = "this-machin"',
        "did you mean 'this-machine'?",
    ),
    "preset of another type": (
        {"cluster.preset": "[1]"},
        "cluster.preset = [1]: expected a known preset",
        "frontier",
    ),
    "preset with an override that does not fit": (
        {"model.preset": '"gpt2-small"', "model.hidden": "100", "model.heads": "12"},
        "model.heads = 12: expected a divisor of model.hidden = 100",
        None,
    ),
    "illegal name": ({"name": '"../x"'}, 'name = "../x": expected 1 to 64 of a-z', None),
    "empty name": ({"name": '""'}, 'name = "": expected 1 to 64 of a-z', None),
    # Lists and global batches
    "empty list": (
        {"space.tensor_parallel": "[]"},
        "space.tensor_parallel = []: expected at least one value",
        None,
    ),
    "repeated value": (
        {"space.tensor_parallel": "[1, 1]"},
        "tensor_parallel = [1, 1]: expected values that differ",
        None,
    ),
    "zero in a list": (
        {"space.tensor_parallel": "[0]"},
        "tensor_parallel = 0: expected whole numbers of at",
        None,
    ),
    "batch of nothing": (
        {"problem.global_batch": "0"},
        "problem.global_batch = 0: expected at least 1",
        None,
    ),
    "batch as text": (
        {"problem.global_batch": '"16"'},
        'problem.global_batch = "16": expected a whole number',
        None,
    ),
    "batch with one end": (
        {"problem.global_batch": "[16]"},
        "problem.global_batch = [16]: expected a whole",
        None,
    ),
    "batch with three ends": (
        {"problem.global_batch": "[1, 2, 3]"},
        "global_batch = [1, 2, 3]: expected a whole",
        None,
    ),
    "batch that falls": (
        {"problem.global_batch": "[16, 8]"},
        "[16, 8]: expected [minimum, maximum] in rising",
        None,
    ),
    "range of truths": (
        {"problem.global_batch": "[false, true]"},
        "global_batch = [false, true]: expected",
        None,
    ),
    "range without accumulation": (
        {"problem.global_batch": "[8, 16]"},
        (
            "space.accumulation is missing: expected values to choose from, since"
            " problem.global_batch is the range 8-16"
        ),
        None,
    ),
    "space without end": (
        {f"space.{key}_parallel": str(list(range(1, 6000))) for key in ("tensor", "pipeline")},
        "points: expected at most 20000000",
        "narrow a dimension: tensor_parallel 5999, ",
    ),
    # Data and store
    "data that is not there": (
        {"data.path": '"nowhere.txt"'},
        'data.path = "nowhere.txt": expected a file',
        None,
    ),
    "data that is a folder": (
        {"data.path": '"."'},
        'data.path = ".": expected a file, by its path from',
        None,
    ),
    "data with a NUL": (
        {"data.path": '"a\\u0000b"'},
        'data.path = "a\\u0000b": expected a file',
        None,
    ),
    "store without a name": (
        {"store.url": '" "'},
        'store.url = " ": expected a path, or a URL',
        None,
    ),
    "runs with a NUL": (
        {"store.run_folder": '"a\\u0000"'},
        'store.run_folder = "a\\u0000": expected a path',
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_named_with_its_key_value_and_what_was_expected(
    case: str, tmp_path: Path
) -> None:
    changes, message, hint = CASES[case]
    error = complaint(written(tmp_path / "campaign.toml", campaign_toml(changes)))
    assert message in error.message
    assert (hint or "") in (error.hint or "")
    assert error.message.isprintable()
    assert len(error.message) < 400
    assert list(tmp_path.iterdir()) == [tmp_path / "campaign.toml"], "something was written"


CONTENTS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", r"\[model\] is missing"),
    "binary": (bytes(range(256)), "is not text in UTF-8: byte 129 does not fit"),
    "utf-16": ("[model]".encode("utf-16"), "is not text in UTF-8"),
    "unclosed section": ("name = 'x'\n[model\n", r"is not valid TOML: .*line 2"),
    "no value": ("\n\n[model]\nlayers =\n", r"is not valid TOML: .*line 4"),
    "text without quotes": ("evaluator = probe\n", r"is not valid TOML: .*line 1"),
    "a key twice": ("name = 'x'\nname = 'y'\n", "is not valid TOML: Cannot overwrite a value"),
    "escape sequence": ("a\x1b[31m = 1\n", r"is not valid TOML: .*line 1"),
    "2 MB": ("#" * 2_000_000, f"at most {MAX_FILE_BYTES:,} bytes"),
    "deep brackets": ("a = " + "[" * 50_000 + "]" * 50_000, "nested too deeply"),
    "deep lists": (
        "[model]\nlayers = " + "[" * 40 + "]" * 40,
        "model.layers is nested more than 8 deep",
    ),
    "deep keys": ("a." * 3000 + "b = 1", "nested more than 8 deep"),
    "a number of 5,000 digits": ("a = " + "9" * 5000, "one of its numbers has thousands of digits"),
    "scalar section": ("model = 3\n", r"model = 3: expected a section: \[model\]"),
    "list of sections": (
        "[[model]]\nlayers = 1\n",
        r"model = \[\{layers = 1\}\]: expected a section: \[model\]",
    ),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_a_file_that_is_no_campaign_says_so(case: str, tmp_path: Path) -> None:
    content, message = CONTENTS[case]
    path = written(tmp_path / "campaign.toml", content)
    error = complaint(path)
    assert error.message.startswith(str(path))
    assert re.search(message, error.message)


@pytest.mark.parametrize("section", ["model", "cluster", "problem"])
def test_a_missing_section_is_named(section: str, tmp_path: Path) -> None:
    kept = [part for part in campaign_toml().split("\n[") if not part.startswith(section)]
    error = complaint(written(tmp_path / "campaign.toml", "\n[".join(kept)))
    assert error.message.endswith(f"[{section}] is missing")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nothing.toml", "there is no such file"),
        (".", "it is a folder"),
        ("/dev/null", "it is a device, a pipe or a socket"),
        ("x" * 5000, "no such"),
        ("a\0b", "no such"),
    ],
    ids=["nothing", "folder", "device", "too long", "NUL"],
)
def test_a_path_without_a_file_says_so(name: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=f"no campaign file at .*{what}") as caught:
        read_campaign_file(tmp_path / name)
    assert caught.value.hint is not None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotFound):
        read_campaign_file(tmp_path / "pipe")
