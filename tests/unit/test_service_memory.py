"""What the service remembers: nothing stale, nothing of another role's, no more than it may."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from frontrunner.results.driving import stamp, stamp_of_recipe
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.server.answers import BESIDE_BYTES, Memory, Question
from frontrunner.server.app import create_app
from frontrunner.server.pace import SHARE_OF_CORE, Pace
from frontrunner.server.pages.router import router
from frontrunner.server.tokens import Role
from support.page_stores import page_store
from support.rankings import measurement, record
from support.services import ORIGIN, bearer, settings, tokens_of

WRITES = """
import sys
from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from support.rankings import measurement, record
with open_store(sys.argv[1]) as store:
    writer = store.drive(store.acquire_lease(store.campaign("second").id, host="elsewhere.example", pid=1))
    writer.set_state(CampaignState.RUNNING, reason="")
    record(writer, sys.argv[2], measurement((0.01, 0.011), 1_000_000), number=50)
    writer.release(CampaignState.FINISHED, reason="")
"""
FASTEST = "ab" * 6
PLENTY = 100_000


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def asked(about: str = "x", asked_s: float = 0.0, role: Role = Role.READER) -> Question:
    return Question(role=role, about=about, asked_s=asked_s)


def test_an_answer_holds_while_its_stamp_does() -> None:
    clock, stamps, made = Clock(), iter([1, 1, 2]), iter(["first", "second"])
    memory = Memory(most_bytes=PLENTY, clock=clock)
    answers = []
    for clock.now_s in (1.0, 2.0, 3.0):
        answers.append(memory.answered(asked(asked_s=clock.now_s), lambda: next(stamps), lambda _: next(made)))
    assert answers == ["first", "first", "second"]


def test_who_asked_before_an_answer_was_begun_is_given_it_and_who_asked_after_is_not() -> None:
    clock, made = Clock(), iter(range(10))
    memory = Memory(most_bytes=PLENTY, clock=clock, spent=lambda: 0.0)
    live = Pace(least_s=1.0, most_s=9.0)

    def ask(at_s: float, pace: Pace | None = None) -> str:
        return memory.answered(asked(asked_s=at_s), object, lambda _: str(next(made)), pace=pace)

    clock.now_s = 5.0
    assert [ask(4.0), ask(4.9), ask(5.0)] == ["0", "0", "0"]
    clock.now_s = 6.0
    assert ask(5.5, live) == "0"
    assert ask(5.5) == "1"
    assert ask(7.5, live) == "2"


def test_the_more_an_answer_costs_the_longer_it_is_given_again_on_live_pages() -> None:
    clock, spent, made = Clock(), Clock(), iter("abc")
    memory = Memory(most_bytes=PLENTY, clock=clock, spent=spent)

    def make(_: object) -> str:
        spent.now_s += 4 * SHARE_OF_CORE  # seconds of processor time: four seconds' worth
        return next(made)

    def ask(at_s: float, pace: Pace) -> str:
        clock.now_s = at_s
        return memory.answered(asked(asked_s=at_s), object, make, pace=pace)

    live = Pace(least_s=1.0, most_s=9.0)
    assert [ask(at_s, live) for at_s in (0.0, 3.9, 4.1)] == ["a", "a", "b"]
    assert ask(6.2, Pace(least_s=1.0, most_s=2.0)) == "c"


def test_equal_questions_at_the_same_time_are_answered_once() -> None:
    memory, begun, go_on, made, answers = Memory(most_bytes=PLENTY), threading.Event(), threading.Event(), [], {}

    def make(_: object) -> str:
        begun.set()
        assert go_on.wait(30)
        made.append("")
        return f"answer {len(made)}"

    def ask(at_s: float) -> None:
        answers[threading.current_thread()] = memory.answered(asked(asked_s=at_s), object, make)

    early = [threading.Thread(target=ask, args=(0.0,)) for _ in range(4)]
    for thread in early:
        thread.start()
    assert begun.wait(30)
    late = threading.Thread(target=ask, args=(memory.clock(),))  # the answer that is being made may be too old for it
    late.start()
    go_on.set()
    for thread in (*early, late):
        thread.join(30)
    assert answers[late] == "answer 2"
    assert "answer 1" in {answers[thread] for thread in early} <= {"answer 1", "answer 2"}
    assert len(made) == 2


def test_each_role_has_its_own_answers_and_errors_are_not_kept() -> None:
    memory, made = Memory(most_bytes=PLENTY), iter(["operator's", "reader's"])

    def fail(_: object) -> str:
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            memory.answered(asked(asked_s=0.0), lambda: 1, fail)
    for _ in range(2):
        found = [
            memory.answered(asked(role=role), lambda: 1, lambda _: next(made)) for role in (Role.OPERATOR, Role.READER)
        ]
        assert found == ["operator's", "reader's"]


def test_what_was_not_asked_for_longest_is_dropped() -> None:
    clock, made = Clock(), []
    memory = Memory(most_bytes=2 * (10 + 1 + BESIDE_BYTES), clock=clock)

    def ask(about: str) -> None:
        clock.now_s += 1
        memory.answered(asked(about, asked_s=clock.now_s), lambda: 1, lambda _: made.append(about) or "x" * 10)

    for about in ("a", "b", "a", "c", "a", "b"):
        ask(about)
    assert made == ["a", "b", "c", "b"]  # the third answer was one too many, and b's the oldest
    ask("a")
    assert made == ["a", "b", "c", "b"]


def test_long_questions_count_as_much_as_long_answers() -> None:
    memory, made = Memory(most_bytes=10_000), []
    for _ in range(2):
        for about in ("a" * 9_000, "b" * 9_000):
            memory.answered(asked(about), lambda: 1, lambda _: made.append("") or "x")
    assert len(made) == 4, "no two of them fit"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    page_store(tmp_path)
    chosen = settings(tmp_path)
    with TestClient(create_app(chosen, pages=(router,)), base_url=ORIGIN) as found:
        found.headers.update(bearer(tokens_of(chosen).operator) | {"accept": "text/html"})
        yield found


def text_of(client: TestClient, path: str, **options: dict[str, str]) -> str:
    answer = client.get(path, **options)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_what_another_process_writes_is_in_the_next_answers(client: TestClient, tmp_path: Path) -> None:
    api = "/api/v1"
    first = client.get(f"{api}/campaigns/second/best").json()[0]["recipe_id"]
    paths = ["/", "/campaigns/second", "/campaigns/second/trials", f"/recipes/{first}", "/metrics", f"{api}/campaigns"]
    paths += [f"{api}/campaigns/second{rest}" for rest in ("", "/best", "/pareto", "/recipes", "/trials")]
    paths += [f"{api}/recipes/{first}", f"{api}/compare?first=first&second=second"]
    before = {path: text_of(client, path) for path in paths}
    assert {path: text_of(client, path) for path in paths} == before
    command = [sys.executable, "-P", "-c", WRITES, str(tmp_path / "store.db"), FASTEST]
    subprocess.run(command, check=True, timeout=60, env=_environment())
    after = {path: text_of(client, path) for path in paths}
    assert [path for path in paths if after[path] == before[path]] == []
    assert client.get(f"{api}/campaigns/second/best").json()[0]["recipe_id"] == FASTEST
    assert FASTEST in after["/campaigns/second"]


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parents[1])]), "OMP_NUM_THREADS": "1"}


def test_what_an_operator_was_shown_no_reader_is(client: TestClient, tmp_path: Path) -> None:
    reader = bearer(tokens_of(settings(tmp_path)).reader)
    for _ in range(2):
        assert "hx-post" in text_of(client, "/campaigns/first")
        assert "hx-post" not in text_of(client, "/campaigns/first", headers=reader)
        live = "/campaigns/first/live?seen=earlier~0"
        assert "hx-post" in text_of(client, live)
        assert "hx-post" not in text_of(client, live, headers=reader)


def driven(store: Store) -> CampaignWriter:
    writer = store.drive(store.acquire_lease(store.campaign("first").id, host="elsewhere.example", pid=1))
    writer.set_state(CampaignState.RUNNING, reason="")
    return writer


def test_two_services_in_one_process_draw_their_own_campaigns(client: TestClient, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    page_store(other)
    for folder, step_s in ((tmp_path, 0.01), (other, 0.02)):  # beside that, both stores are alike
        with open_store(str(folder / "store.db")) as store:
            writer = driven(store)
            record(writer, FASTEST, measurement((step_s, step_s), 1_000_000), number=50)
            writer.release(CampaignState.FINISHED, reason="")
    chosen, path = settings(other), "/campaigns/first/figures/history"
    with TestClient(create_app(chosen, pages=(router,)), base_url=ORIGIN) as theirs:
        theirs.headers.update(bearer(tokens_of(chosen).operator))
        ours, drawn = client.get(path).json(), theirs.get(path).json()
    assert drawn["figure"] is not None
    assert drawn != ours


def test_a_recipe_s_stamp_changes_with_every_campaign_that_tries_it(tmp_path: Path) -> None:
    ids = page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        before = stamp_of_recipe(store, ids[0])
        assert before == stamp_of_recipe(store, f" {ids[0][:8].upper()}") == stamp(store, ("first", "second"))
        driven(store).event("note")
        changed = stamp_of_recipe(store, ids[0])
        assert [old != new for old, new in zip(before, changed, strict=True)] == [True, False]
        assert stamp_of_recipe(store, "0" * 12) == ()


def test_reads_that_belong_together_see_one_state(tmp_path: Path) -> None:
    page_store(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store, open_store(str(tmp_path / "store.db")) as other:
        with store.database.reading():
            before = store.campaign("first").state
            with store.database.reading():
                driven(other)
            assert store.campaign("first").state is before is CampaignState.FINISHED
        assert store.campaign("first").state is CampaignState.RUNNING
