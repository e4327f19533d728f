"""What runs now: its steps, why it was chosen, and what is unknown of it; on pages, by the API and
on the terminal.
"""

from __future__ import annotations

import csv
import io
import os
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

import frontrunner
from frontrunner.results.predictions import PROPOSED, Expected
from frontrunner.results.records import COPIED
from frontrunner.results.store import open_store
from frontrunner.running_trials import Running, log_end, running, why_chosen
from frontrunner.server.auth import Role
from frontrunner.server.pages.campaigns import snippets
from frontrunner.server.service import Service
from frontrunner.spaces.errors import NotFound
from frontrunner.store import LocalStore
from frontrunner.views.results import print_running
from support.live_campaigns import driven, write_steps
from support.page_stores import page_store
from support.services import bearer, browser, remote, settings, tokens_of

EXPECTED = Expected(tokens_per_s=5000.0, chance=0.9, expected_improvement=0.031)


def seen(folder: Path, *, top: int = 3) -> Running:
    with open_store(str(folder / "store.db"), read_only=True) as store:
        return running(store, "wide", top=top)


def test_running_probe_has_its_step_its_reason_and_the_last_outcomes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with driven(tmp_path, "wide") as campaign:
        campaign.go_on(8)
        folder = campaign.begin(EXPECTED)
        assert seen(tmp_path).probes[0].step_in_words == "waiting to start"
        write_steps(folder, 0)
        assert seen(tmp_path).probes[0].step_in_words == "first step"
        write_steps(folder, 2)
        found = seen(tmp_path)
        (one,) = found.probes
        assert (
            one.step_in_words
            == f"step 2 of at most {campaign.spec.probe.most_steps}, the last in 1.5 s"
        )
        assert (one.trial_number, one.recipe, one.expected, one.unknown) == (
            9,
            campaign.recipes[8],
            EXPECTED,
            "",
        )
        words = (
            "chance to run 90 %, expected 5,000 tokens/s; expected gain over the best 3.1 %, none"
            " if slower"
        )
        assert why_chosen(one, "guided") == words
        assert [row.trial.number for row in found.last] == [8, 7, 6, 5, 4, 3]
        print_running(found)
        assert f"running   [9] {one.recipe.describe()}" in capsys.readouterr().out
        campaign.finish()
        assert (seen(tmp_path).total, seen(tmp_path).last[0].trial.number) == (0, 9)
    assert seen(tmp_path).driver is None


@pytest.mark.parametrize("most_named", [0, 100], ids=["all are read", "named"])
def test_expectation_stored_by_an_earlier_version_is_read_without_its_belief(
    most_named: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontrunner.results.predictions.MOST_NAMED", most_named)
    belief = {"x": "tensor_parallel", "y": "pipeline_parallel", "cells": [[1, 1, 450.0]]}
    with driven(tmp_path, "wide") as campaign:
        campaign.begin()
        campaign.writer.event(PROPOSED, **asdict(EXPECTED), belief=belief, trial=1)
        assert seen(tmp_path).probes[0].expected == EXPECTED


def test_of_many_running_probes_the_first_are_described_and_all_counted(tmp_path: Path) -> None:
    with driven(tmp_path, "wide") as campaign:
        for _ in range(5):
            campaign.begin()
        found = seen(tmp_path, top=2)
        assert ([one.trial_number for one in found.probes], found.total) == ([1, 2], 5)
        assert why_chosen(found.probes[0], "random") == "random stored no forecast of it"


def test_probe_on_another_machine_is_unknown_even_where_a_folder_of_its_name_is(
    tmp_path: Path,
) -> None:
    with driven(tmp_path, "wide") as campaign, open_store(str(tmp_path / "store.db")) as store:
        campaign.begin()
        lease = store.acquire_lease(
            store.campaign("wide").id, host="elsewhere", pid=1, take_over=True
        )
        campaign.writer = store.drive(lease)
        assert seen(tmp_path).total == 0, "an earlier driver's attempt does not run"
        folder = campaign.begin()
        write_steps(folder, 3)
        assert seen(tmp_path).probes[0].steps_done == 3, "a shared folder"
        os.utime(folder, (1e9, 1e9))
        (one,) = seen(tmp_path).probes
        assert (one.phase, one.steps_done) == (None, None)
        assert one.step_in_words.startswith(
            "step and log are unknown here: the driver runs on elsewhere"
        )


def test_command_s_steps_are_read_from_its_log(tmp_path: Path) -> None:
    choices = "{tensor_parallel} {pipeline_parallel} {micro_batch_seqs} {schedule} {recompute}"
    command = {
        "arguments": ["train", *choices.split()],
        "log_patterns": [r"step (?P<step>\d+) took (?P<step_time_s>\S+)"],
    }
    with driven(tmp_path, "wide", evaluator="command", command=command) as campaign:
        folder = campaign.begin()
        (folder / "command.log").write_text(
            "1.0 hello\n2.0 step 1 took 0.7\n3.5 step 2 took 0.5\n", encoding="utf-8"
        )
        (one,) = seen(tmp_path).probes
        assert (one.steps_done, one.last_step_s) == (2, 0.5)
        assert (
            log_end(campaign.spec.run_folder, folder) == "hello\nstep 1 took 0.7\nstep 2 took 0.5"
        )


def test_operators_alone_read_the_log_of_a_probe_that_runs(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    with driven(tmp_path, "wide") as campaign, browser(chosen) as client:
        write_steps(campaign.begin(), 1)
        tokens = tokens_of(chosen)
        operator, reader = remote(client, tokens.operator), remote(client, tokens.reader)
        assert operator.running("wide").probes[0].step_in_words.startswith("step 1 of at most")
        assert operator.log("wide", 1).endswith("rank 0 says 40\n")
        with pytest.raises(NotFound, match="no log to read"):
            reader.log("wide", 1)
        pages = [
            client.get("/campaigns/wide", headers=bearer(one)).text
            for one in (tokens.operator, tokens.reader)
        ]
        assert ["rank 0 says 40" in page for page in pages] == [True, False]
        assert all("step 1 of at most" in page for page in pages)


def test_log_of_a_resumed_copy_is_read_only_where_its_live_driver_runs(tmp_path: Path) -> None:
    local = LocalStore(str(tmp_path / "store.db"))
    with driven(tmp_path, "wide") as campaign, open_store(local.url) as store:
        campaign.writer.event(COPIED, store="a.db", campaign="wide")
        write_steps(campaign.begin(), 1)
        assert local.log("wide", 1).endswith("rank 0 says 40\n")
        lease = store.acquire_lease(
            store.campaign("wide").id, host=socket.gethostname(), pid=os.getpid(), take_over=True
        )
        campaign.writer = store.drive(lease)
        write_steps(campaign.begin(), 2)
        assert local.log("wide", 2).endswith("rank 0 says 41\n")
        with pytest.raises(NotFound, match="no log to read"):
            local.log("wide", 1)  # as one that was open in the other store
    with pytest.raises(NotFound, match="no log to read"):
        local.log("wide", 2)


def test_csv_has_the_rows_of_the_table(tmp_path: Path) -> None:
    page_store(tmp_path)
    chosen = settings(tmp_path)
    with browser(chosen) as client:
        answer = client.get(
            "/api/v1/campaigns/first/dataframe?format=csv", headers=bearer(tokens_of(chosen).reader)
        )
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    frame = LocalStore(str(tmp_path / "store.db")).dataframe("first")
    assert [row["recipe_id"] for row in rows] == frame["recipe_id"].tolist()
    assert float(rows[0]["tokens_per_s"]) == frame["tokens_per_s"][0]
    assert "first-measurements.csv" in answer.headers["content-disposition"]


def test_snippets_load_the_campaign_as_they_are_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page_store(tmp_path)
    chosen = settings(tmp_path)
    with browser(chosen) as client:
        service: Service = client.app.state.service  # type: ignore[attr-defined]
        monkeypatch.setattr(
            frontrunner,
            "connect",
            lambda url: remote(client, tokens_of(chosen).reader),
            raising=False,
        )
        texts = snippets(service, "first", "http://127.0.0.1:8787", Role.OPERATOR)
        assert len(texts) == 2
        printed = []
        for text in texts.values():
            found: dict[str, object] = {}
            exec(text, found)
            assert len(found["frame"]) == 4
            printed.append(capsys.readouterr().out)
        assert printed[0] == printed[1] != ""
        assert list(snippets(service, "first", "http://far:80", Role.READER)) == ["by this service"]
        assert (
            "PLAIN_HTTP"
            in snippets(service, "first", "http://far:80", Role.READER)["by this service"]
        )
