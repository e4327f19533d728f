"""The audit after chaos: what stores, folders and the machine show, read past frontrunner's own code.

Stores are read by plain SQL. Run folders are the second witness: an outcome that lies in one was finished, so the store
must have it, once, for the recipe that the folder's attempt was of.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

KINDS = ("lost", "doubled", "misattributed", "budget overrun", "unfinished", "orphan process", "left file", "damage")

CACHES = ("torchinductor_",)
"""What libraries keep among temporary files on purpose, from run to run."""

ATTEMPTS = """
SELECT c.name, t.recipe_id, t.recipe_json, a.run_folder, a.state, m.tokens_per_s, f.kind
FROM attempts a JOIN trials t ON t.id = a.trial_id JOIN campaigns c ON c.id = a.campaign_id
LEFT JOIN measurements m ON m.attempt_id = a.id LEFT JOIN failures f ON f.attempt_id = a.id
"""
TWICE = """
SELECT c.name, t.recipe_id, count(*) FROM attempts a JOIN trials t ON t.id = a.trial_id
JOIN campaigns c ON c.id = a.campaign_id WHERE a.state = 'measured' GROUP BY t.id HAVING count(*) > 1
"""


@dataclass
class Audit:
    """Findings by kind, in words."""

    stuck: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    outcomes: int = 0

    def __post_init__(self) -> None:
        for words in self.stuck:
            self.find("unfinished", words)

    def find(self, kind: str, words: str) -> None:
        """Note a finding."""
        self.findings.append(f"{kind}: {words}")

    def counts(self) -> dict[str, int]:
        """How many findings of each kind, also of those that have none."""
        found = Counter(finding.split(":")[0] for finding in self.findings)
        return {kind: found[kind] for kind in KINDS}


def audit_store(audit: Audit, store: Path, *, most_outcomes: int) -> None:
    """Hold one store against its run folders and its budgets."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        finding = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if finding != "ok" or connection.execute("PRAGMA foreign_key_check").fetchall():
            audit.find("damage", f"{store}: {finding}")
        for name, state, outcomes in connection.execute("SELECT name, state, outcomes FROM campaigns"):
            audit.outcomes += outcomes
            if state != "finished":
                audit.find("unfinished", f"{name} is {state}")
            if outcomes > most_outcomes:
                audit.find("budget overrun", f"{name} has {outcomes} outcomes of {most_outcomes}")
        for name, recipe, count in connection.execute(TWICE):
            audit.find("doubled", f"{name}: recipe {recipe} was measured {count} times")
        rows = connection.execute(ATTEMPTS).fetchall()
    by_folder: dict[str, Any] = {}
    for row in rows:
        if row[3] in by_folder:
            audit.find("doubled", f"{row[3]} belongs to two attempts")
        by_folder[row[3]] = row
        _check_attempt(audit, row)
    for outcome in store.parent.glob("**/outcome.json"):
        if str(outcome.parent) not in by_folder:
            audit.find("lost", f"{outcome} is of no attempt in the store")


def _check_attempt(audit: Audit, row: tuple[Any, ...]) -> None:
    name, recipe_id, recipe_json, folder, state, tokens_per_s, kind = row
    where = f"{name} {Path(folder).name}"
    if (tokens_per_s is None) == (kind is None):
        audit.find("doubled" if kind else "lost", f"{where}: {state}, throughput {tokens_per_s}, failure {kind}")
    witness = _read(Path(folder) / "outcome.json")
    if witness is None:
        return
    seen = witness["outcome"]
    if witness["kind"] == "measurement" and seen["tokens_per_s"] != tokens_per_s:
        audit.find("misattributed", f"{where}: {seen['tokens_per_s']} tokens/s there, {tokens_per_s} in the store")
    if witness["kind"] == "failure" and seen["kind"] != kind:
        audit.find("misattributed", f"{where}: failure {seen['kind']} there, {kind} in the store")
    job = _read(Path(folder) / "job.json")
    if job is not None and not _same_recipe(job["recipe"], json.loads(recipe_json)):
        audit.find("misattributed", f"{where}: ran another recipe than {recipe_id}")


def _same_recipe(ran: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Whether the ranks were asked for the stored recipe, by the fields that both name alike."""
    plain = (key for key in ran.keys() & stored.keys() if not isinstance(ran[key], dict))
    return all(ran[key] == stored[key] for key in plain)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None  # a kill in the middle leaves no outcome, and the attempt is held against the store alone


def shared_memory() -> set[str]:
    """The names of the machine's shared memory segments."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def leftovers(audit: Audit, folder: Path, shared_before: set[str]) -> None:
    """Processes, temporary files and shared memory that outlived every campaign."""
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get("TMPDIR") == str(folder / "tmp")
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                audit.find("orphan process", f"{process.pid} {' '.join(process.cmdline())[:80]}")
        except psutil.Error:
            continue
    for path in (folder / "tmp").iterdir():
        if not path.name.startswith(CACHES):
            audit.find("left file", str(path))
    for name in sorted(shared_memory() - shared_before):
        audit.find("left file", f"/dev/shm/{name}")
