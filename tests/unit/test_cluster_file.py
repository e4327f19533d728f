"""Cluster files: named by a campaign file, read with the same care, and used by estimates."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import frontrunner
from frontrunner.config.campaign import named_cluster, read_campaign_file, read_cluster_file
from frontrunner.evaluators.analytic.codes import FRONTRUNNER
from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.evaluators.analytic.machine import (
    CODE_CONSTANTS,
    EFFICIENCY_NAMES,
    FITTED,
    Machine,
    check_efficiencies,
)
from frontrunner.spaces.cluster import ByPrecision, Cluster
from frontrunner.spaces.errors import FrontrunnerError
from support.analytic import A100, PROBLEM, recipe
from support.campaign_files import campaign_toml, written

CLUSTER = """
[cluster]
device = "test-device"
backend = "cpu"
devices_per_node = 4
memory_gib_per_device = 2.0
memory_gb_per_s = 5.0
matmul_tflops = { fp32 = 0.05 }
[cluster.links]
node_gb_per_s = 0.5
[cluster.efficiencies]
memory = 1.0
node_links = 1
node_latency_s = 1e-3
[cluster.expected_error]
fp32 = 0.12
"""
OWN_KEYS = ("device", "backend", "devices_per_node", "memory_gib_per_device", "peak_tflops")


def campaign(folder: Path, **changes: str | None) -> Path:
    """A campaign file that names cluster.toml, with other keys of its [cluster] changed."""
    keys = {f"cluster.{key}": None for key in OWN_KEYS} | {
        f"cluster.{key}": value for key, value in changes.items()
    }
    return written(
        folder / "campaign.toml", campaign_toml({"cluster.file": '"cluster.toml"'} | keys)
    )


def test_a_campaign_takes_the_file_s_figures_and_its_own_first(tmp_path: Path) -> None:
    written(tmp_path / "cluster.toml", CLUSTER)

    found = read_campaign_file(
        campaign(tmp_path, memory_gib_per_device="1.0", name='"mine"')
    ).spec.problem.cluster

    assert found == replace(
        read_cluster_file(tmp_path / "cluster.toml"), memory_gib_per_device=1.0, name="mine"
    )
    assert found.matmul_tflops.fp32 == 0.05
    assert found.efficiencies == {"memory": 1.0, "node_links": 1.0, "node_latency_s": 1e-3}


def test_a_cluster_file_may_begin_with_a_preset(tmp_path: Path) -> None:
    path = written(
        tmp_path / "c.toml",
        '[cluster]\npreset = "polaris"\nnodes = 4\nefficiencies = { memory = 0.9 }\n',
    )

    assert read_cluster_file(path) == replace(
        named_cluster("polaris"), nodes=4, efficiencies={"memory": 0.9}
    )


MISTAKES = {
    "no section": ("memory = 1\n", "unknown key memory = 1"),
    "another section": (CLUSTER + "[model]\nlayers = 1\n", r"unknown section \[model\]"),
    "a file of a file": (
        '[cluster]\nfile = "c.toml"\n',
        "cluster.file = .* no such key in a cluster file",
    ),
    "a figure that cannot be": (
        CLUSTER.replace("0.5", "-0.5"),
        r"cluster\.links\.node_gb_per_s = -0\.5: expected a",
    ),
    "a rate of nothing": (
        CLUSTER.replace("0.05", "0"),
        r"cluster\.matmul_tflops\.fp32 = 0\.0: expected a rate",
    ),
    "a figure that is missing": (
        CLUSTER.replace("memory_gib_per_device = 2.0", ""),
        "memory_gib_per_device is missing",
    ),
    "a key of no one": (
        CLUSTER.replace("memory_gb_per_s", "memory_gbps"),
        "unknown key cluster.memory_gbps",
    ),
    "an efficiency of no one": (
        CLUSTER.replace("node_links", "node_link"),
        "unknown key cluster.efficiencies.node_link ",
    ),
    "a share above 1": (
        CLUSTER.replace("node_links = 1", "node_links = 1.5"),
        r"node_links = 1\.5: expected a share above 0",
    ),
    "a share of nothing": (
        CLUSTER.replace("memory = 1.0", "memory = 0"),
        "memory = 0.0: expected a share above 0",
    ),
    "a time below nothing": (
        CLUSTER.replace("1e-3", "-1e-3"),
        r"node_latency_s = -0\.001: expected a number of at least",
    ),
    "text for a number": (
        CLUSTER.replace("1e-3", '"fast"'),
        r'efficiencies\.node_latency_s = "fast": expected a number',
    ),
    "an error of nothing": (
        CLUSTER.replace("0.12", "0"),
        r"cluster\.expected_error\.fp32 = 0\.0: expected a share above 0",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_a_cluster_file_names_file_key_and_value(case: str, tmp_path: Path) -> None:
    content, message = MISTAKES[case]
    written(tmp_path / "cluster.toml", content)

    with pytest.raises(FrontrunnerError) as caught:
        read_campaign_file(campaign(tmp_path))

    assert caught.value.exit_code == 2
    assert re.search(r"campaign\.toml: .*cluster\.toml: .*" + message, caught.value.message), (
        caught.value.message
    )


def test_mistakes_beside_a_cluster_file(tmp_path: Path) -> None:
    with pytest.raises(
        FrontrunnerError, match=r"no cluster file at .*cluster\.toml: there is no such file"
    ):
        read_campaign_file(campaign(tmp_path))
    written(tmp_path / "cluster.toml", CLUSTER)
    for changes, message in (
        (
            {"preset": '"polaris"'},
            'cluster.preset = "polaris": expected no preset with cluster.file',
        ),
        (
            {"devices_per_node": "2"},
            "cluster.devices_per_node = 2: expected 4: cluster.toml was measured with",
        ),
        ({"file": "3"}, "cluster.file = 3: expected the path of a cluster file"),
    ):
        with pytest.raises(FrontrunnerError) as caught:
            read_campaign_file(campaign(tmp_path, **changes))
        assert message in caught.value.message


def test_a_cluster_by_name_is_a_preset_or_a_path(tmp_path: Path) -> None:
    path = written(tmp_path / "c.toml", CLUSTER)

    assert named_cluster(str(path)).device == "test-device"
    assert named_cluster("frontier").device == "mi250x-gcd"
    with pytest.raises(FrontrunnerError) as caught:
        named_cluster("frontir")
    assert caught.value.hint == "did you mean 'frontier'?"


def test_what_the_cluster_states_goes_before_what_ships() -> None:
    cluster = replace(
        A100,
        matmul_tflops=ByPrecision(fp16=200),
        efficiencies={"matmul": 0.9, "memory": 1.0, "host_layer_s": 1e-4},
    )

    stated, shipped = (
        Machine.of(cluster, "fp16", FRONTRUNNER),
        Machine.of(A100, "fp16", FRONTRUNNER),
    )

    assert stated.matmul_flops == pytest.approx(200e12 * 0.9)
    assert stated.memory_bytes_per_s == pytest.approx(2039e9)
    assert (stated.code.host_layer_s, shipped.code.host_layer_s) == (
        1e-4,
        FRONTRUNNER.host_layer_s,
    )
    assert stated.efficiencies.tile_waves == FITTED.tile_waves
    assert Machine.of(cluster, "bf16", FRONTRUNNER).matmul_flops == pytest.approx(
        312e12 * 0.86 * 0.9
    )


def test_every_constant_of_software_and_hardware_may_be_stated() -> None:
    assert set(CODE_CONSTANTS) <= set(vars(FRONTRUNNER))
    assert set(EFFICIENCY_NAMES) == {*vars(FITTED), *CODE_CONSTANTS}
    check_efficiencies(vars(FITTED) | {"rank_imbalance": 1.0})


def test_plan_states_the_error_that_was_held_back_and_of_its_precision_alone() -> None:
    unknown = replace(A100, device="of-my-own", expected_error=ByPrecision(fp16=0.07))
    problem = replace(PROBLEM, cluster=unknown)

    own, other = (
        plan([recipe()], replace(problem, precision=precision)).trust
        for precision in ("fp16", "bf16")
    )
    assert own.expected_error == 0.07
    assert (
        "that the cluster file's own fit did not see were off by 7 % on average" in own.in_words()
    )
    assert not own.remarks
    assert other.expected_error is None
    assert "not compared with any measurement of dense models on of-my-own" in other.in_words()


def test_an_error_that_was_held_back_on_one_node_says_nothing_of_an_unknown_network() -> None:
    links = replace(A100.links, nic_gb_per_s=None)
    several = replace(A100, links=links, matmul_share=None, expected_error=ByPrecision(fp16=0.07))
    one = replace(several, nodes=1)

    found = [plan([recipe()], replace(PROBLEM, cluster=cluster)) for cluster in (one, several)]

    assert [plan.trust.assumed for plan in found] == [(), ("links.nic_gb_per_s",)]
    errors = [plan.estimates[0].expected_error or 0.0 for plan in found]
    assert errors[0] == pytest.approx(0.07, rel=0.01)
    assert errors[1] > 1.5 * errors[0]


def test_what_a_campaign_overrides_of_a_cluster_file_is_single_figures(tmp_path: Path) -> None:
    written(tmp_path / "cluster.toml", CLUSTER)
    of_file = read_cluster_file(tmp_path / "cluster.toml")

    cluster = read_campaign_file(
        campaign(tmp_path, efficiencies="{ elementwise = 2.5 }")
    ).spec.problem.cluster

    assert cluster.efficiencies == {**of_file.efficiencies, "elementwise": 2.5}


def test_plan_from_a_campaign_with_a_cluster_file(tmp_path: Path) -> None:
    written(tmp_path / "cluster.toml", CLUSTER)

    found = frontrunner.plan(campaign(tmp_path))

    assert found.trust.expected_error == pytest.approx(0.12, rel=0.01)
    assert any("all busy on one CPU" in remark for remark in found.trust.remarks)
    slower = CLUSTER.replace("fp32 = 0.05", "fp32 = 0.005")
    written(tmp_path / "cluster.toml", slower)
    again = {
        one.recipe_id: one.step_time_s for one in frontrunner.plan(campaign(tmp_path)).estimates
    }
    assert all(again[one.recipe_id] > one.step_time_s for one in found.estimates)


def test_a_stored_campaign_keeps_its_cluster(tmp_path: Path) -> None:
    from frontrunner.search.spec import CampaignSpec
    from frontrunner.spaces.validation import dump_json, load_json

    written(tmp_path / "cluster.toml", CLUSTER)
    spec = read_campaign_file(campaign(tmp_path)).spec

    assert load_json(CampaignSpec, dump_json(spec), what="spec") == spec
    older = json.loads(dump_json(spec))
    for key in ("matmul_tflops", "efficiencies", "expected_error"):
        del older["problem"]["cluster"][key]
    assert (
        load_json(CampaignSpec, json.dumps(older), what="spec").problem.cluster.efficiencies == {}
    )


def test_a_cluster_s_defaults_are_nothing_measured() -> None:
    plain = Cluster(
        name="x", device="y", backend="cpu", nodes=1, devices_per_node=1, memory_gib_per_device=1
    )

    assert (plain.matmul_flops("fp32"), plain.efficiencies, plain.expected_error) == (
        None,
        {},
        ByPrecision(),
    )
