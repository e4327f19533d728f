"""What fuzzing found, as the inputs that did it; and a small share of the fuzzing itself, always
the same inputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import frontrunner
from frontrunner.config.toml_file import parse_toml
from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.evaluators.export.reading import Given, json_table
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.evaluators.nodes.supervisor import LOG
from frontrunner.evaluators.programs.command_log import Log
from frontrunner.evaluators.programs.logs import LogReader, patterns_of
from frontrunner.evaluators.programs.trainers import LOG_PATTERNS
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.evaluators.tables.rows import read_problems
from frontrunner.evaluators.tables.schema import read_csv
from frontrunner.exchange import import_table
from frontrunner.machine import fit_tables
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.store import open_store
from frontrunner.spaces.errors import InvalidInput, NotFound
from support.campaigns import environment, setup_of, tiny_recipe
from support.formats import problem
from support.tables import row, write_table

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz_inputs.py"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frontrunner.launch(5), "launch.campaign = 5: expected an argument of type str"),
        (lambda: frontrunner.replay("1fa0", steps="10"), 'replay.steps = "10": expected .* int'),
        (lambda: frontrunner.best(store=7), "best.store = 7: expected an argument of type str"),
    ],
)
def test_public_functions_refuse_arguments_of_other_types(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_public_functions_take_numbers_of_numpy(tmp_path: Path) -> None:
    open_store(str(tmp_path / "s.db"), create=True).close()
    with pytest.raises(NotFound, match="no campaign"):
        frontrunner.best(top=np.int64(3), store=str(tmp_path / "s.db"))


@pytest.mark.system
def test_a_thousand_bad_inputs_are_refused_or_read_as_they_were_written() -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZ), "--inputs", "1000", "--seed", "1"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["inputs"] == 1000


def quickly(begin: float) -> bool:
    return time.process_time() - begin < 1.0


class TestTables:
    def test_a_device_s_name_of_thousands_of_digits_is_read_quickly(self, tmp_path: Path) -> None:
        path = write_table(tmp_path / "t.csv", row(hardware="9" * 9_000))
        begin = time.process_time()
        read_problems(path)
        assert quickly(begin)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a,b\n1,2,3,4\n5,6,7,8\n", "more cells than its header"),
            (f"model,seq\n{'x' * 200_000},1\n", "field larger than field limit"),
            ("a,b,a\n1,2,3\n", "two columns a"),
        ],
    )
    def test_other_tables_than_people_write_are_refused(
        self, tmp_path: Path, text: str, said: str
    ) -> None:
        path = tmp_path / "t.csv"
        path.write_text(text)
        with pytest.raises(InvalidInput, match=said):
            read_csv(path)

    @pytest.mark.parametrize("use", [import_table, lambda path, **_: fit_tables([path])])
    def test_a_pipe_and_a_device_are_refused_before_they_are_read(
        self, tmp_path: Path, use: Callable[..., object]
    ) -> None:
        pipe = tmp_path / "pipe.csv"
        os.mkfifo(pipe)
        for path in (pipe, Path("/dev/zero")):
            with pytest.raises(
                NotFound, match=f"no table at {path}: it is a device, a pipe or a socket"
            ):
                use(path, store=str(tmp_path / "store.db"))

    def test_a_file_too_long_for_a_table_is_refused_before_it_is_parsed(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "t.csv"
        path.touch()
        for size, said in (
            (300 * 2**20, "too long: a table has at most"),
            (100 * 2**20, "is not a CSV table"),
        ):
            os.truncate(path, size)  # zeros, which take no room on the disk
            with pytest.raises(InvalidInput, match=said):
                fit_tables([path])

    def test_a_global_batch_of_zero_is_a_reason_to_leave_a_row_out(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="1 x gbs below 1"):
            fit_tables([write_table(tmp_path / "t.csv", row(gbs="0"))])

    def test_whole_numbers_beyond_every_float_are_left_out(self, tmp_path: Path) -> None:
        found = read_problems(write_table(tmp_path / "t.csv", row(gbs="9" * 400), row()))
        assert sum(len(problem.rows) for problem in found.problems) == 1

    def test_a_step_too_short_for_any_rate_is_left_out(self, tmp_path: Path) -> None:
        found = read_problems(write_table(tmp_path / "t.csv", row(step_time_s="5e-324"), row()))
        assert sum(len(problem.rows) for problem in found.problems) == 1

    def test_unknown_columns_are_named_shortly_with_the_file(self, tmp_path: Path) -> None:
        path = write_table(tmp_path / "t.csv", row() | {"z" * 60_000: "1"})
        with pytest.raises(InvalidInput, match=r"t\.csv: the table has columns") as refused:
            import_table(path, store=str(tmp_path / "store.db"), preview=True)
        assert len(refused.value.message) < 400


def test_a_toml_key_of_thousands_of_characters_is_quoted_shortly() -> None:
    with pytest.raises(InvalidInput, match=r"at line 2, column") as refused:
        parse_toml(f"[{'k' * 65_536}]\n[{'k' * 65_536}]\n", "campaign.toml")
    assert len(refused.value.message) < 300


def test_a_toml_key_of_thousands_of_parts_is_refused_before_it_is_parsed() -> None:
    begin = time.process_time()
    with pytest.raises(InvalidInput, match="a key of more than 64 parts"):
        parse_toml("[model]\n" + "a." * 40_000 + "b = 1\n", "c.toml")
    assert quickly(begin)
    parts = ".".join("a" * 60)
    assert parse_toml(f'{parts} = 1\npath = "{"../" * 200}"\n', "c.toml")


class TestOtherTools:
    @pytest.mark.parametrize(
        ("tool", "text"),
        [
            ("nemo", "ddp: {use_megatron_fsdp: true, data_parallel_sharding_strategy: {a: 1}}"),
            ("nanotron", "parallelism: {dp: 2, tp: 1, pp: 2, pp_engine: [1f1b]}"),
            ("deepspeed", '{"zero_optimization": {"stage": 1.0}}'),
            (
                "deepspeed",
                '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": ["cpu"]}}}',
            ),
            (
                "accelerate",
                (
                    "{distributed_type: DEEPSPEED, deepspeed_config: {zero_stage: 2,"
                    " offload_param_device: []}}"
                ),
            ),
        ],
    )
    def test_values_of_other_kinds_are_refused(self, tool: str, text: str) -> None:
        with pytest.raises(InvalidInput):
            TOOLS[tool].read(
                problem(), Given(text=text, stated={"micro_batch_seqs": 1, "accumulation": 1})
            )

    def test_a_key_given_twice_among_thousands_is_found_quickly(self) -> None:
        keys = ", ".join(f'"k{number}": 1' for number in [*range(20_000), 19_999])
        begin = time.process_time()
        with pytest.raises(InvalidInput, match="the key k19999 is given twice"):
            json_table("{" + keys + "}")
        assert quickly(begin)


class TestRunFolders:
    """A driver takes what is damaged in a run folder for what is not there."""

    @pytest.fixture
    def good(self, tmp_path: Path) -> dict[str, object]:
        return asdict(simulate(tiny_recipe(), setup_of(tmp_path)))

    @pytest.mark.parametrize(
        "change",
        [
            {"tokens_per_step": "64"}, {"tokens_per_step": 2**64}, {"node_seconds": [1.0]},
            {"losses": ["a"]},
            {"losses": [float("inf")]}, {"step_times_s": []}, {"step_times_s": [-1.0]},
            {"peak_memory_bytes": [10**30]},
            {"mfu": float("nan")}, {"ended": "never"}, {"build_time_s": None},
        ],
    )  # fmt: skip
    def test_an_outcome_of_other_types_or_that_no_store_holds(
        self, tmp_path: Path, good: dict[str, object], change: dict[str, object]
    ) -> None:
        for outcome, expected in ((good, True), (good | change, False)):
            (tmp_path / "outcome.json").write_text(
                json.dumps({"kind": "measurement", "outcome": outcome})
            )
            assert (RunFolder(tmp_path).outcome() is not None) is expected

    @pytest.mark.parametrize("named", ["/elsewhere/00001.1", "", 7, ["00001.1"], {}])
    def test_an_outcome_of_another_folder(
        self, tmp_path: Path, good: dict[str, object], named: object
    ) -> None:
        said = {"kind": "measurement", "outcome": good}
        for folder, expected in ((str(tmp_path), True), (named, False)):
            (tmp_path / "outcome.json").write_text(json.dumps({"run_folder": folder, **said}))
            assert (RunFolder(tmp_path).outcome() is not None) is expected

    @pytest.mark.parametrize(
        "text", ["null", "[]", '"text"', "{}", '{"kind": "failure", "outcome": {"kind": 1}}']
    )
    def test_a_file_that_is_no_outcome(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "outcome.json").write_text(text)
        assert RunFolder(tmp_path).outcome() is None

    def test_a_failure_comes_back_as_it_was(self, tmp_path: Path) -> None:
        failure = Failure(
            kind=FailureKind.HUNG, message="m", log_tail="t", log_path="p", node_seconds=1.5
        )
        RunFolder(tmp_path).write_outcome(failure)
        assert RunFolder(tmp_path).outcome() == failure


class TestLogs:
    def reader(self, folder: Path, text: bytes) -> LogReader:
        log = Log(folder / LOG)
        log.write(text)
        log.close()
        return LogReader(folder, patterns_of(LOG_PATTERNS["megatron-lm"]))

    def test_a_step_of_400_digits_is_none(self, tmp_path: Path) -> None:
        digits = b"9" * 400
        line = b" iteration %s/ 1 | elapsed time per iteration (ms): 5.5 | max allocated: %s\n" % (
            digits,
            digits,
        )
        log = self.reader(tmp_path, line + line.replace(digits, b"7"))
        log.advance()
        assert [step.number for step in log.steps] == [1, 7]

    def test_lines_of_blanks_are_read_quickly(self, tmp_path: Path) -> None:
        log = self.reader(tmp_path, (b" " * 3_999 + b"\n") * 100)
        begin = time.process_time()
        assert log.advance()
        assert quickly(begin)

    def test_a_line_without_an_end_is_read_in_parts(self, tmp_path: Path) -> None:
        good = b" iteration 7/ 9 | elapsed time per iteration (ms): 5.5 |\n"
        log = self.reader(tmp_path, b"x" * 3_000_000 + b"\n" + good)
        begin = time.process_time()
        assert log.read_all()
        assert [step.number for step in log.steps] == [7]
        assert quickly(begin)
