"""Plans of one problem on several clusters: each is a plain plan, and the clusters are ranked by
the campaign's objective.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import frontrunner
from frontrunner.cli.main import frontrunner as command
from frontrunner.spaces.errors import InvalidInput, NothingLegal
from support.campaigns import Table, write_toml

FILE = Path(__file__).parents[2] / "examples" / "frontier-22b.toml"
CLUSTERS: dict[str, Table] = {
    "a100": {"preset": "dgx-a100-80gb", "nodes": 8, "price_per_node_hour": 12.0},
    "h100": {"preset": "dgx-h100", "nodes": 4, "price_per_node_hour": 40.0},
    "small": {"preset": "dgx-h100", "nodes": 1, "memory_gib_per_device": 4.0},
}


@pytest.fixture
def clusters(tmp_path: Path) -> dict[str, str]:
    paths = {name: tmp_path / f"{name}.toml" for name in CLUSTERS}
    for name, path in paths.items():
        write_toml(path, {"cluster": CLUSTERS[name]})
    return {name: str(path) for name, path in paths.items()}


def sections(**more: Table) -> Table:
    return {
        "model": {"preset": "frontier-22b"},
        "cluster": {"preset": "frontier", "nodes": 16},
        "problem": {"sequence_length": 2048, "global_batch": 1280},
        "space": {"tensor_parallel": [1, 8], "sharding": ["zero-1", "zero-3"]},
        **more,
    }


def test_plan_clusters_has_the_plan_of_each_cluster(clusters: dict[str, str]) -> None:
    found = frontrunner.plan_clusters(sections(), [clusters["a100"], clusters["h100"]])
    rows = {row.cluster: row for row in found.clusters}
    for name in ("a100", "h100"):
        row = rows[clusters[name]]
        alone = frontrunner.plan(sections(cluster=CLUSTERS[name]))
        assert row.best == alone.fastest(1)[0]
        assert (row.legal, row.fitting) == (alone.legal, alone.table.fitting)
        assert row.trust == alone.trust
        assert row.best.tokens_per_s is not None
        assert row.devices == 8 * CLUSTERS[name]["nodes"]
        assert row.tokens_per_s_per_device == pytest.approx(
            row.best.tokens_per_s / row.best.recipe.devices
        )
        hours = CLUSTERS[name]["nodes"] * 1e9 / row.best.tokens_per_s / 3600
        assert row.price_per_billion_tokens == pytest.approx(
            hours * CLUSTERS[name]["price_per_node_hour"]
        )


@pytest.mark.parametrize(
    ("objective", "order"),
    [
        ("tokens", ["h100", "a100"]),
        ("tokens_per_device", ["h100", "a100"]),
        ("tokens_per_cost", ["a100", "h100"]),
    ],
)
def test_plan_clusters_ranks_by_the_objective(
    clusters: dict[str, str], objective: str, order: list[str]
) -> None:
    file = sections(
        cluster={"preset": "frontier", "nodes": 16, "price_per_node_hour": 1.0},
        search={"objectives": [objective]},
    )
    found = frontrunner.plan_clusters(file, [clusters[name] for name in reversed(order)])
    assert found.rate == objective
    assert [row.cluster for row in found.clusters] == [clusters[name] for name in order]


def test_plan_clusters_lists_a_cluster_without_a_recipe_last_with_the_reason(
    clusters: dict[str, str],
) -> None:
    found = frontrunner.plan_clusters(sections(), [clusters["small"], clusters["a100"]])
    *_, last = found.clusters
    assert last.cluster == clusters["small"]
    assert (last.best, last.price_per_billion_tokens) == (None, None)
    assert last.reason is not None
    assert last.reason.startswith("nothing fits: the smallest recipe needs ")


def test_plan_clusters_takes_a_preset_with_as_many_nodes_as_the_file_s_cluster() -> None:
    (row,) = frontrunner.plan_clusters(sections(), ["dgx-h100"]).clusters
    assert (row.nodes, row.devices) == (16, 128)


def test_plan_clusters_leaves_out_what_is_about_the_file_s_own_cluster(
    clusters: dict[str, str],
) -> None:
    own = {
        "dispatch": {
            "backend": "parsl",
            "scheduler": "slurm",
            "walltime": "01:00:00",
            "nodes_per_allocation": 2,
        }
    }
    file = sections(cluster={"preset": "frontier", "nodes": 2}, **own)
    (row,) = frontrunner.plan_clusters(file, [clusters["a100"]]).clusters
    assert row.best is not None


def test_plan_clusters_refuses_a_cluster_that_cannot_be_planned(clusters: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="each once"):
        frontrunner.plan_clusters(sections(), [clusters["a100"]] * 2)
    by_price = sections(
        cluster={"preset": "frontier", "nodes": 16, "price_per_node_hour": 1.0},
        search={"objectives": ["tokens_per_cost"]},
    )
    with pytest.raises(InvalidInput, match=r"small\.toml: search\.objectives = .*price_per"):
        frontrunner.plan_clusters(by_price, [clusters["small"]])


def planned(*words: str) -> None:
    command(["plan", str(FILE), *words], standalone_mode=False)


def test_plan_command_prints_a_row_for_each_cluster(
    clusters: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    planned("--cluster", "a100.toml", "--cluster", "small.toml", "--cluster", "h100.toml")
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split()[0] for line in lines if line.split(".toml ")[0] in CLUSTERS]
    assert rows == ["h100.toml", "a100.toml", "small.toml"]
    assert "price / 1e9 tok" in lines[1]
    assert any(line.startswith("small.toml: nothing fits: ") for line in lines)
    planned("--cluster", "a100.toml", "--cluster", "dgx-h100")
    assert "price / 1e9 tok" not in capsys.readouterr().out, "the preset has no price"
    planned("--cluster", "a100.toml", "--json")
    (row,) = json.loads(capsys.readouterr().out)["clusters"]
    assert row["cluster"] == "a100.toml"
    assert row["tokens_per_s_per_device"] > 0


def test_plan_command_refuses_options_of_one_cluster(clusters: dict[str, str]) -> None:
    for option in (["--top", "3"], ["--nodes", "1,2"]):
        with pytest.raises(InvalidInput, match=f"{option[0]} is for one cluster"):
            planned("--cluster", clusters["a100"], *option)
    with pytest.raises(NothingLegal, match="on any of these clusters"):
        planned("--cluster", clusters["small"])
