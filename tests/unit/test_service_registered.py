"""What a launch over HTTP may not send it names: sites, trainers, data and tables, checked when the
service starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from frontrunner.config.campaign import parse_campaign, read_campaign_file
from frontrunner.server.requests import CampaignBody, campaign_table, parsed
from frontrunner.server.settings import AROUND, Registered, ServiceSettings, register
from frontrunner.spaces.errors import InvalidInput, NotFound
from support.campaigns import tiny
from support.services import settings, signed_in
from support.tables import row, write_table

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SITE, TRAINER = EXAMPLES / "sites" / "slurm.toml", EXAMPLES / "command-accelerate.toml"
SECRET = "hunter2-is-no-secret"
PATTERNS = "log_patterns = ['step (?P<step_time_s>[0-9.]+) s']\n"
PROBED = tiny()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Registered:
    folder = tmp_path_factory.mktemp("registered")
    (folder / "pile.txt").write_text("text " * 1000)
    (folder / "queue.toml").write_text(
        f'[dispatch]\nbackend = "allocation"\nworker_init = ["export WANDB_API_KEY={SECRET}"]\n'
    )
    (folder / "keyed.toml").write_text(
        f'[command]\narguments = ["train", "{SECRET}"]\n{PATTERNS}[command.environment]\nAPI ='
        f' "{SECRET}"\n'
    )
    write_table(folder / "runs.csv", row())
    return register(
        {
            "site": [f"slurm={SITE}", f"queue={folder / 'queue.toml'}"],
            "trainer": [f"accelerate={TRAINER}", f"keyed={folder / 'keyed.toml'}"],
            "data": [f"pile={folder / 'pile.txt'}"],
            "table": [f"runs={folder / 'runs.csv'}"],
        }
    )


@pytest.fixture(scope="module")
def chosen(known: Registered, tmp_path_factory: pytest.TempPathFactory) -> ServiceSettings:
    return replace(settings(tmp_path_factory.mktemp("service")), registered=known)


@pytest.fixture(scope="module")
def client(chosen: ServiceSettings) -> Iterator[TestClient]:
    with signed_in(chosen) as found:
        yield found


def resolved(known: Registered, **changes: Any) -> Any:
    """The campaign that a launch of this body starts."""
    body = {**PROBED, **changes}
    return parsed(campaign_table(CampaignBody.model_validate(body), known)).spec


def test_a_name_stands_for_what_its_file_says(known: Registered) -> None:
    at_site = resolved(known, site="slurm", cluster={"nodes": 1})
    own = read_campaign_file(SITE).spec
    assert at_site.dispatch == own.dispatch
    assert at_site.problem.cluster == replace(own.problem.cluster, nodes=1)
    trained = resolved(known, trainer="accelerate")
    assert (trained.evaluator, trained.command) == (
        "command",
        read_campaign_file(TRAINER).spec.command,
    )
    assert (
        resolved(known, trainer="accelerate", site="slurm", cluster={"nodes": 1}).dispatch
        == own.dispatch
    )
    assert resolved(known, data="pile").data.path.endswith("pile.txt")
    looked_up = resolved(known, table="runs")
    assert looked_up.evaluator == "table"
    assert Path(looked_up.table.path).is_absolute()
    assert resolved(known).evaluator == "probe"


def test_a_site_without_a_cluster_goes_with_any(known: Registered) -> None:
    found = resolved(known, site="queue")
    assert found.dispatch.backend == "allocation"
    assert asdict(found.problem.cluster)["device"] == "test-cpu"


def test_a_site_says_where_its_nodes_see_the_probes_files(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    text = (
        '[dispatch]\nbackend = "allocation"\n[store]\nurl = "sqlite:///x.db"\nrun_folder ='
        f' "{shared}"\n'
    )
    (tmp_path / "site.toml").write_text(text)
    found = register({"site": [f"here={tmp_path / 'site.toml'}"]})
    file = parsed(campaign_table(CampaignBody.model_validate(PROBED | {"site": "here"}), found))
    assert (file.store.run_folder, file.store.url) == (str(shared), None)


def test_a_rehearsal_takes_the_site_s_machine_alone(known: Registered) -> None:
    found = resolved(known, site="slurm", cluster={}, evaluator="simulated")
    assert found.problem.cluster == read_campaign_file(SITE).spec.problem.cluster
    assert found.dispatch.backend is None


REFUSED = [
    ({"site": "slrum"}, 'site = "slrum": expected one of queue, slurm'),
    (
        {"site": "slurm"},
        "cluster.device = .*: expected cluster.nodes only: site = .slurm. defines the rest",
    ),
    ({"site": "slurm", "cluster": {"nodes": 3}}, "dispatch.nodes_per_allocation = 2"),
    ({"site": "slurm", "cluster": {"preset": "frontier"}}, "cluster.preset"),
    ({"trainer": "nanotron"}, "trainer = .nanotron.: expected one of accelerate, keyed"),
    (
        {"trainer": "accelerate", "evaluator": "probe"},
        "evaluator = .probe.: expected command, or no entry",
    ),
    (
        {"evaluator": "command"},
        "trainer is missing: expected a registered trainer .accelerate, keyed.",
    ),
    ({"evaluator": "table"}, "table is missing: expected a registered table .runs."),
    (
        {"trainer": "accelerate", "table": "runs"},
        "table = .runs.: expected no entry together with trainer",
    ),
    ({"data": "../../etc/passwd"}, "expected one of pile"),
    (
        {"data": {"path": "/etc/passwd"}},
        r"\[data\] is not accepted from a request: expected data = a registered name",
    ),
    (
        {"dispatch": {"worker_init": ["x"]}},
        r"\[dispatch\] is not accepted .* expected site = a registered name",
    ),
    (
        {"command": {"arguments": ["x"]}},
        r"\[command\] is not accepted .* expected trainer = a registered name",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_names_that_are_none_and_names_that_do_not_fit_are_refused(
    client: TestClient, changes: dict[str, Any], message: str
) -> None:
    refused = client.post("/api/v1/plan", json=PROBED | changes)
    assert refused.status_code == 422, refused.text
    assert re.search(message, refused.json()["detail"]), refused.text


def test_a_body_without_a_space_is_searched_as_a_file_without_one(client: TestClient) -> None:
    body = {key: value for key, value in PROBED.items() if key != "space"}
    planned = client.post("/api/v1/plan", json=body)
    assert planned.status_code == 200, planned.text
    assert planned.json()["legal"] == len(
        parse_campaign(body, default_name="x", base=Path()).spec.survey().recipes
    )
    stated = client.post("/api/v1/plan", json=body | {"space": {}})
    assert stated.json()["legal"] < planned.json()["legal"], (
        "an empty section says that nothing varies"
    )


def test_a_launch_names_what_there_is(client: TestClient) -> None:
    refused = client.post("/api/v1/campaigns", json=PROBED | {"trainer": "nanotron"})
    assert refused.status_code == 422
    assert "expected one of accelerate, keyed" in refused.json()["detail"]


def test_where_nothing_is_registered_the_answer_says_who_can() -> None:
    with pytest.raises(InvalidInput, match="no site is registered here") as refused:
        resolved(Registered(), site="slurm")
    assert "frontrunner serve --site NAME=FILE" in str(refused.value.hint)


def test_names_are_listed_without_what_they_hold(client: TestClient) -> None:
    found = client.get("/api/v1/registered").json()
    assert found["site"]["slurm"] == "dgx-h100: 2 nodes of 8 x h100-80gb, slurm"
    assert found["trainer"] == {"accelerate": "accelerate", "keyed": "a command"}
    assert list(found["data"]) == ["pile"]
    described = client.get("/api/v1/openapi.json")
    properties = described.json()["components"]["schemas"]["CampaignBody"]["properties"]
    assert properties["site"]["anyOf"][0]["enum"] == ["queue", "slurm"]
    page = client.get("/launch", headers={"accept": "text/html"}).text
    assert 'option value="slurm"' in page
    for text in (str(found), described.text, page):
        assert SECRET not in text
        assert "pile.txt" not in text


def test_the_launch_page_checks_the_names_with_the_text(client: TestClient) -> None:
    text = 'name = "seen"\n' + "".join(
        f"[{section}]\n"
        + "".join(f"{key} = {_toml(value)}\n" for key, value in AROUND[section].items())
        for section in ("model", "problem", "space")
    )

    def check(**names: str) -> str:
        return client.post("/launch/check", json={"campaign": text, **names}).text

    assert "[cluster] is missing" in check(site="", trainer="")
    assert "legal recipe on 16 devices" in check(site="slurm")
    assert "expected one of queue, slurm" in check(site="frontier")
    assert (
        "another site"
        in client.post(
            "/launch/check", json={"campaign": f'site = "queue"\n{text}', "site": "slurm"}
        ).text
    )


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


MISTAKES = [
    ("site", "slurm", "", InvalidInput, "--site = .slurm.: expected NAME=FILE"),
    ("site", "a b=x.toml", "", InvalidInput, "the name"),
    ("site", "x=none.toml", "", NotFound, "--site x=none.toml: no site file at"),
    (
        "site",
        "x=x.toml",
        "[model]\nlayers = 1\n",
        InvalidInput,
        r"has no section \[cluster\] or \[dispatch\]",
    ),
    (
        "site",
        "x=x.toml",
        '[dispatch]\nbackend = "parsl"\n',
        InvalidInput,
        r"dispatch\.scheduler is missing",
    ),
    ("site", "x=x.toml", "[dispatch]\nque = 1\n", InvalidInput, r"unknown key dispatch\.que"),
    (
        "trainer",
        "x=x.toml",
        "[command]\narguments = []\n",
        InvalidInput,
        r"command\.arguments is missing",
    ),
    (
        "trainer",
        "x=x.toml",
        f'[command]\narguments = ["{{tp}}"]\n{PATTERNS}',
        InvalidInput,
        "no field is called .tp.",
    ),
    (
        "data",
        "x=none.txt",
        "",
        InvalidInput,
        r"--data x=none.txt: data\.path = .none.txt.: expected a file",
    ),
    ("table", "x=none.csv", "", InvalidInput, r"table\.path"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake[0]}-{mistake[4]}")
def test_a_file_that_cannot_be_used_ends_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mistake: tuple[str, str, str, type[Exception], str],
) -> None:
    kind, word, text, error, message = mistake
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(error, match=message):
        register({kind: [word]})


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("command-*.toml")), ids=lambda path: path.stem
)
def test_every_example_of_a_trainer_can_be_registered(path: Path) -> None:
    assert register({"trainer": [f"x={path}"]}).names("trainer") == ("x",)


def test_what_a_name_stands_for_is_not_told_where_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pile.txt").write_text("text " * 1000)
    write_table(tmp_path / "runs.csv", row())
    known = register({"data": ["pile=pile.txt"], "table": ["runs=runs.csv"]})
    (tmp_path / "pile.txt").unlink()
    chosen = replace(settings(tmp_path), registered=known)
    with signed_in(chosen, "reader") as service:
        for named, said in (
            ({"data": "pile"}, 'data = "pile" can no longer be used'),
            ({"table": "runs"}, 'table = "runs" holds no problem of'),
        ):
            refused = service.post("/api/v1/plan", json=PROBED | named)
            assert refused.status_code == 422
            assert refused.json()["detail"].startswith(said)
            assert str(tmp_path) not in refused.text
    assert f'data = "pile" cannot be used: data.path = "{str(tmp_path)[:40]}' in caplog.text


def test_a_name_stands_for_one_file() -> None:
    with pytest.raises(InvalidInput, match="x is registered for another file"):
        register({"site": [f"x={SITE}", f"x={SITE}"]})
