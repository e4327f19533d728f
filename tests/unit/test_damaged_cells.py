"""A cell that no version wrote: what reads it refuses the store by its row and column, and names
the newest backup.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from frontrunner.results import pages, ranking, status
from frontrunner.results.frames import frame
from frontrunner.results.predictions import (
    OUTLOOK,
    PROPOSED,
    Expected,
    expected_of,
    newest_outlooks,
)
from frontrunner.results.prior_results import CUT, campaign_results, probes_made
from frontrunner.results.rows import DamagedCell
from frontrunner.results.snapshot import attempts_of
from frontrunner.results.states import CampaignState
from frontrunner.results.status import explain
from frontrunner.results.store import Store, open_store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.errors import StoreUnusable
from frontrunner.spaces.validation import dump_json
from support.campaigns import spec_of, tiny
from support.store_contract import RAN_WITH, begin, failure, lease_elsewhere, measurement

RECIPE_ID = "aaaa00000000"
EXPECTED = Expected(tokens_per_s=9.0, chance=1.0, expected_improvement=None)
BACKUP = "store.db.backup-20260301T120000Z"


def outlooks(store: Store) -> object:
    with store.database.read() as connection:
        return newest_outlooks(connection, 1, 3)


QUESTIONS: dict[str, Callable[[Store], object]] = {
    "campaigns": lambda store: store.campaigns(),
    "status": lambda store: status.status(store, "kept"),
    "failures": lambda store: status.failures(store, "kept"),
    "best": lambda store: [ranking.best(store, "kept", by=by.value) for by in ranking.RankBy],
    "pareto": lambda store: ranking.pareto(store, "kept"),
    "show": lambda store: explain(store, RECIPE_ID),
    "dataframe": lambda store: frame(store, "kept"),
    "told": lambda store: (
        store.final_outcomes(1),
        store.trials(1),
        store.events(1),
        store.open_attempts(1),
    ),
    "histories": lambda store: pages.trial_histories(store, 1),
    "arrays": lambda store: attempts_of(store, "kept"),
    "spans": lambda store: pages.newest_spans(store, 1, 50),
    "recipes": lambda store: pages.recipe_page(store, "kept", filters={"tensor_parallel": 2}),
    "trials": lambda store: (
        pages.trial_page(store, "kept"),
        pages.outcomes_after(store, 1, 0, 50),
    ),
    "compare": lambda store: pages.compare(store, ["kept", "kept"]),
    "known": lambda store: (campaign_results(store, 1), probes_made(store, store.campaign("kept"))),
    "drivers": lambda store: (status.active_drivers(store), status.version_of(store, "kept")),
    "outlooks": outlooks,
    "proposals": lambda store: expected_of(store, 1, [1]),
    "specification": lambda store: stored_spec(store.campaign("kept")),
}
"""What commands, pages and drivers ask of a store."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something in every table, which a driver on another host holds, and a backup
    beside it.
    """
    path = tmp_path_factory.mktemp("sound") / "store.db"
    spec = spec_of(tiny(name="kept", evaluator="simulated"), run_root=Path("/nowhere"))
    with open_store(str(path)) as store:
        campaign = store.create_campaign(
            name="kept",
            spec_json=dump_json(spec),
            legal_recipes=9,
            problem_summary={},
        )
        writer = store.drive(lease_elsewhere(store, campaign))
        writer.set_state(CampaignState.RUNNING, reason="")
        writer.record_provenance(RAN_WITH)
        for recipe_id, outcome in (
            (RECIPE_ID, measurement()),
            ("bbbb", failure()),
            ("cccc", measurement(0.6)),
        ):
            writer.finish_attempt(
                writer.start_attempt(begin(writer, recipe_id), run_folder="r"), outcome, retry=False
            )
        writer.start_attempt(begin(writer, "dddd"), run_folder="r")
        writer.event(PROPOSED, trial=1, **asdict(EXPECTED))
        writer.event(OUTLOOK, expected_improvement=0.1, gap=0.2, gap_at_most=0.3, measured=2)
        writer.event(CUT, trial=2)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("INSERT INTO endings VALUES (1, 'known')")
        file.execute("INSERT INTO telemetry VALUES (1, '{\"idle_memory_bytes\":[1]}')")
    (path.parent / BACKUP).touch()
    return path


@pytest.fixture(scope="module")
def store(sound: Path) -> Iterator[Store]:
    """The store, opened once: most of a question's time would go into opening it."""
    with open_store(str(sound), read_only=True) as opened:
        yield opened


@contextmanager
def damaged(path: Path, table: str, column: str, value: str) -> Iterator[int]:
    """Have a value, as SQL writes it, in the column of a table's first row, past the constraints;
    gives out its key.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA ignore_check_constraints = ON")
        row, held = file.execute(
            f"SELECT rowid, {column} FROM {table} ORDER BY rowid LIMIT 1"
        ).fetchone()
        file.execute(f"UPDATE {table} SET {column} = {value} WHERE rowid = ?", (row,))
        try:
            yield row
        finally:
            file.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (held, row))


def refusals(store: Store, path: Path) -> dict[str, str]:
    """What each question says that does not answer; anything but an error of ours fails the
    test.
    """
    said = {}
    for name, ask in QUESTIONS.items():
        try:
            ask(store)
        except StoreUnusable as error:
            named = store.damaged(error) if isinstance(error, DamagedCell) else error
            assert named.hint is not None
            assert named.hint.endswith(f"store copy --store {path.parent / BACKUP} --to NEW.db")
            said[name] = named.message
    return said


def test_a_sound_store_answers_every_question(store: Store, sound: Path) -> None:
    assert refusals(store, sound) == {}


CUT_SHORT = "substr({column}, 1, length({column}) - 2)"
DAMAGES = [
    (
        "campaigns",
        "state",
        "'finishee'",
        """it holds "finishee", expected 'created', 'running', """,
    ),
    ("campaigns", "spec_json", CUT_SHORT, "Invalid JSON: EOF"),
    ("campaigns", "spec_json", "'[]'", "expected a valid dictionary"),
    ("campaigns", "spec_json", "'{}'", "this version cannot read it"),
    ("campaigns", "lease_until", "'2026-13-01T00:00:00+00:00'", "month must be in 1..12"),
    ("campaigns", "lease_until", "'2026-12-01T00:00:00'", "has no time zone"),
    ("campaigns", "updated_at", "'2026-03-01T13:00:00.000000+01:00'", "expected a time in UTC"),
    ("campaigns", "epoch", "'one'", 'it holds "one", expected a valid integer'),
    ("campaigns", "driver_seconds", "-1.0", "it holds -1.0, expected greater than or equal to 0"),
    ("campaigns", "name", "CAST(x'6bff' AS TEXT)", "expected a valid string"),
    (
        "provenance",
        "provenance_json",
        "replace(provenance_json, '\"2.8\"', '28')",
        "versions.torch: it holds 28",
    ),
    (
        "trials",
        "recipe_json",
        "replace(recipe_json, '1f1b', '1f1c')",
        'recipe.schedule = "1f1c": expected one of',
    ),
    (
        "trials",
        "recipe_json",
        'replace(recipe_json, \'"devices":8\', \'"devices":"8"\')',
        'devices: it holds "8"',
    ),
    (
        "trials",
        "recipe_json",
        "replace(recipe_json, '\"compile\"', '\"compilf\"')",
        '"compilf" is not known',
    ),
    (
        "trials",
        "recipe_json",
        "CAST(x'7bff7d' AS TEXT)",
        "expected a valid string|Invalid JSON|key must be a string",
    ),
    ("attempts", "finished_at", "'x'", "Invalid isoformat string"),
    ("attempts", "trial_id", "77", "its campaign has no trial with the id 77"),
    (
        "measurements",
        "step_times_s_json",
        "'[0.5,null]'",
        "1: it holds nothing, expected a valid number",
    ),
    ("measurements", "step_times_s_json", "'[1e999]'", "0: it holds inf, expected a finite number"),
    ("measurements", "step_times_s_json", "'[]'", "Tuple should have at least 1 item"),
    ("measurements", "step_times_s_json", f"'{'[' * 100_000}'", "recursion limit exceeded"),
    (
        "measurements",
        "peak_memory_bytes_json",
        "'[1.5]'",
        "0: it holds 1.5, expected a valid integer",
    ),
    ("measurements", "losses_json", "'{}'", "expected a valid tuple"),
    ("endings", "ended", "'knowo'", 'it holds "knowo"'),
    ("telemetry", "telemetry_json", "'{\"idle_memory_bytes\":1}'", "idle_memory_bytes: it holds 1"),
    ("failures", "kind", "'crasxed'", 'it holds "crasxed"'),
    ("standings", "tokens_per_s", "0.0", "it holds 0.0, expected greater than 0"),
    ("events", "data_json", "'{\"trial\":1}'", "expected_improvement"),
]
"""Table, column, what it is made to hold, and what is said of it."""


@pytest.mark.parametrize(("table", "column", "value", "says"), DAMAGES)
def test_a_damaged_cell_is_refused_by_its_row_its_column_and_the_newest_backup(
    store: Store, sound: Path, table: str, column: str, value: str, says: str
) -> None:
    with damaged(sound, table, column, value.replace("{column}", column)) as row:
        said = refusals(store, sound)
    assert said, "no question reads it"
    for message in said.values():
        assert re.fullmatch(
            rf"{re.escape(str(sound))} is damaged: {table} row {row}, {column}: .*({says}).*",
            message,
            re.DOTALL,
        ), message


def test_a_specification_that_is_read_later_is_refused_alike(sound: Path) -> None:
    def specification() -> None:
        with open_store(str(sound), read_only=True) as opened:
            stored_spec(opened.campaign("kept"))

    with damaged(sound, "campaigns", "spec_json", "'{}'"), pytest.raises(StoreUnusable) as refused:
        specification()
    assert refused.value.message.startswith(f"{sound} is damaged: campaigns row 1, spec_json: ")
    assert BACKUP in str(refused.value.hint)


def test_a_constraint_that_no_longer_holds_is_refused_by_its_row_before_a_driver_starts(
    sound: Path,
) -> None:
    with damaged(sound, "trials", "state", "'queueb'"), pytest.raises(StoreUnusable) as refused:
        open_store(str(sound))
    assert 'trials row 1, state: it holds "queueb", expected ' in refused.value.message


def test_a_store_whose_version_is_no_number_is_damaged(sound: Path) -> None:
    with (
        damaged(sound, "store", "schema_version", "x'00ff'"),
        pytest.raises(StoreUnusable) as refused,
    ):
        open_store(str(sound), read_only=True)
    assert "is damaged: store row 1, schema_version: it holds " in refused.value.message


def test_a_name_that_is_no_text_is_damage_where_another_is_asked_for(
    store: Store, sound: Path
) -> None:
    with (
        damaged(sound, "campaigns", "name", "x'00ff'"),
        pytest.raises(StoreUnusable, match="campaigns row 1, name: "),
    ):
        store.campaign("kept")


def test_fields_of_a_later_version_are_not_taken_for_damage(store: Store, sound: Path) -> None:
    value = 'replace(recipe_json, \'"compile"\', \'"new":1,"compile"\')'
    with (
        damaged(sound, "trials", "recipe_json", value),
        pytest.raises(StoreUnusable, match="does not know") as refused,
    ):
        store.trials(1)
    assert refused.value.hint == "upgrade frontrunner"
