"""Presets: each builds, has a source, and carries the figures that its sources give."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from typing import Any

import pytest

from frontrunner.cli.main import frontrunner
from frontrunner.config.campaign import parse_campaign, parse_cluster
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.presets import (
    CATALOGUES,
    cluster_preset,
    device_preset,
    known_device,
    model_preset,
    preset_names,
)
from frontrunner.spaces.validation import validate
from frontrunner.views.presets import presets_by_kind


def catalogue(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(
        (files("frontrunner.spaces") / "preset_data" / f"{name}.toml").read_text(encoding="utf-8")
    )


def model(name: str) -> Model:
    table = model_preset(name)
    return validate(
        Model,
        {"kv_heads": table["heads"], "ffn_hidden": 4 * table["hidden"]} | table,
        prefix="model",
    )


def cluster(name: str) -> Cluster:
    return validate(Cluster, cluster_preset(name), prefix="cluster")


# As published, in billions, which is rounded; gpt-oss and DeepSeek without the input embedding.
@pytest.mark.parametrize(
    ("name", "published", "counts_embedding"),
    [
        ("mixtral-8x7b", 12.9, True),
        ("mixtral-8x22b", 39, True),
        ("qwen3-30b-a3b", 3.3, True),
        ("qwen3-235b-a22b", 22, True),
        ("gpt-oss-20b", 3.61, False),
        ("gpt-oss-120b", 5.13, False),
        ("deepseek-v2-lite", 2.4, False),
        ("deepseek-v3", 37, False),
    ],
)
def test_active_parameters_are_the_published_ones(
    name: str, published: float, counts_embedding: bool
) -> None:
    mixture = model(name)
    embedding = 0 if counts_embedding else mixture.embedding.vocabulary * mixture.hidden
    assert (mixture.active_parameters - embedding) / 1e9 == pytest.approx(published, rel=0.025)
    stated = presets_by_kind(name)["models"][name]
    assert (stated["parameters"], stated["active_parameters"]) == (
        mixture.parameters,
        mixture.active_parameters,
    )


# Parameters of the released checkpoints. The Frontier study's names are rounded.
@pytest.mark.parametrize(
    ("name", "parameters", "tolerance"),
    [
        ("gpt2-small", 124_439_808, 0),
        ("gpt2-medium", 354_823_168, 0),
        ("gpt2-large", 774_030_080, 0),
        ("gpt2-xl", 1_557_611_200, 0),
        ("frontier-22b", 22e9, 0.02),
        ("frontier-175b", 175e9, 0.01),
        ("frontier-1t", 1000e9, 0.01),
        ("gpt-neox-20b", 20_554_567_680, 0),
        ("gpt-oss-20b", 20_914_757_184, 0),
        ("gpt-oss-120b", 116_829_156_672, 0),
        ("gemma-2-9b", 9_241_705_984, 0),
        ("gemma-2-27b", 27_227_128_320, 0),
        ("gemma-3-12b", 11_766_034_176, 0),  # the text's part, as transformers builds it
        ("gemma-3-27b", 27_009_346_304, 0),
        ("llama-2-7b", 6_738_415_616, 0),
        ("llama-3-8b", 8_030_261_248, 0),
        ("llama-3-70b", 70_553_706_496, 0),
        ("llama-3.1-8b", 8_030_261_248, 0),
        ("llama-3.1-70b", 70_553_706_496, 0),
        ("llama-3.1-405b", 405_853_388_800, 0),
        ("llama-3.2-1b", 1_235_814_400, 0),
        ("qwen2.5-7b", 7_615_616_512, 0),
        ("qwen3-0.6b", 596_049_920, 0),
        ("qwen3-8b", 8_190_735_360, 0),
        ("qwen3-32b", 32_762_123_264, 0),
        ("mistral-7b", 7_241_732_096, 0),
        ("mixtral-8x7b", 46_702_792_704, 0),
        ("mixtral-8x22b", 140_620_634_112, 0),
        ("qwen3-30b-a3b", 30_532_122_624, 0),
        ("qwen3-235b-a22b", 235_093_634_560, 0),
        ("deepseek-v2-lite", 15_706_484_224, 0),
        ("deepseek-v3", 671_026_404_352, 0),
    ],
)
def test_models_have_the_published_parameters(
    name: str, parameters: float, tolerance: float
) -> None:
    assert model(name).with_keys(vocabulary_multiple=1).parameters == pytest.approx(
        parameters, rel=tolerance, abs=0
    )


def test_a_layer_that_predicts_a_further_token_has_the_published_parameters() -> None:
    """11.5 billion of DeepSeek-V3's own, 2.4 of which a token meets with embedding and head (its
    README_WEIGHTS).
    """
    plain = model("deepseek-v3").with_keys(vocabulary_multiple=1)
    further = plain.with_keys(mtp_layers=1)
    assert (further.parameters - plain.parameters) / 1e9 == pytest.approx(11.5, rel=0.01)
    shared = 2 * plain.embedding.vocabulary * plain.hidden
    assert (further.active_parameters - plain.active_parameters + shared) / 1e9 == pytest.approx(
        2.4, rel=0.06
    )


def test_every_model_preset_is_tested() -> None:
    rows = test_models_have_the_published_parameters.pytestmark[0].args[1]
    assert {row[0] for row in rows} == set(preset_names("models"))


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads"),
    [
        ("frontier-22b", 48, 6144, 48),
        ("frontier-175b", 96, 12288, 96),
        ("frontier-1t", 128, 25600, 200),
    ],
)
def test_the_frontier_study_s_models(name: str, layers: int, hidden: int, heads: int) -> None:
    shape = model(name)
    assert (len(shape.layers), shape.hidden, shape.attention.heads, shape.attention.kv_heads) == (
        layers,
        hidden,
        heads,
        heads,
    )


# Devices a node, GiB a device, fp16 TFLOP/s, and the network in GB/s: ports x rate.
@pytest.mark.parametrize(
    ("name", "per_node", "gib", "tflops", "network"),
    [
        ("frontier", 8, 64, 191.5, 4 * 25),
        ("polaris", 4, 40, 312, 2 * 25),
        ("perlmutter", 4, 40, 312, 4 * 25),
        ("dgx-a100-80gb", 8, 79.2, 312, 8 * 25),
        ("dgx-h100", 8, 79.6, 989.4, 8 * 50),
        ("dgx-h200", 8, 140.4, 989.4, 8 * 50),
        ("dgx-b200", 8, 179, 2250, 8 * 50),
        ("dgx-b300", 8, 268, 2250, 8 * 100),
        ("gb200-nvl72", 72, 185, 2500, 72 * 50),
        ("gb300-nvl72", 72, 277, 2500, 72 * 100),
        ("mi300x-platform", 8, 192, 1307.4, 8 * 50),
        ("mi325x-platform", 8, 256, 1307.4, 8 * 50),
        ("mi350x-platform", 8, 288, 2306.9, 8 * 50),
        ("mi355x-platform", 8, 288, 2516.6, 8 * 50),
        ("aurora", 12, 64, 419, 8 * 25),
        ("dgx-1-v100", 8, 31.7, 125, 4 * 12.5),
        ("hgx-h20", 8, 95.6, 148, 8 * 50),
        ("h100-nvl-server", 8, 93.6, 835.5, 4 * 50),
        ("aws-p4d-24xlarge", 8, 40, 312, 400 / 8),
        ("aws-p4de-24xlarge", 8, 79.2, 312, 400 / 8),
        ("aws-p5-48xlarge", 8, 79.6, 989.4, 3200 / 8),
        ("aws-p5en-48xlarge", 8, 140.4, 989.4, 3200 / 8),
        ("aws-p6-b200-48xlarge", 8, 179, 2250, 3200 / 8),
        ("aws-p6-b300-48xlarge", 8, 268, 2250, 6400 / 8),
        ("aws-g6e-48xlarge", 8, 45, 362.05, 4 * 12.5),
        ("aws-g5-48xlarge", 8, 22.5, 70, 12.5),
        ("rtx-4090-server", 8, 24, 165.2, 0),
        ("rtx-5090-server", 8, 31.8, 209.5, 0),
        ("hls-gaudi-3", 8, 128, 459, 24 * 25),
    ],
)
def test_clusters_have_their_published_figures(
    name: str, per_node: int, gib: float, tflops: float, network: float
) -> None:
    found = cluster(name)
    assert (found.name, found.nodes, found.devices_per_node) == (name, 1, per_node)
    assert found.memory_gib_per_device == gib
    assert found.peak_flops("fp16") == tflops * 1e12
    bf16 = {"dgx-1-v100": None, "hls-gaudi-3": 1835e12}.get(name, tflops * 1e12)
    assert found.peak_flops("bf16") == bf16
    assert (found.links.nics_per_node or 0) * (found.links.nic_gb_per_s or 0) == network


@pytest.mark.parametrize("name", preset_names("devices"))
def test_fp8_rates_are_dense_ones(name: str) -> None:
    """Twice those in 16 bits, but for Gaudi 3's engines, which do both alike; none before Ada,
    Hopper and MI300.
    """
    rates = device_preset(name)["peak_tflops"]
    if any(one in name for one in ("a100", "v100", "mi250", "pvc", "a10g")):
        assert "fp8" not in rates
    else:
        assert rates["fp8"] == pytest.approx(
            (1 if name == "gaudi-3" else 2) * rates["bf16"], rel=0.02
        )


def test_every_cluster_preset_is_tested() -> None:
    rows = test_clusters_have_their_published_figures.pytestmark[0].args[1]
    assert {row[0] for row in rows} == set(preset_names("clusters"))


def test_frontier_s_device() -> None:
    found = cluster("frontier")
    assert found.memory_gb_per_s == pytest.approx(1600, rel=0.03)
    assert (found.device, found.backend) == ("mi250x-gcd", "rocm")


@pytest.mark.parametrize("name", ["models", "devices", "clusters"])
def test_every_entry_has_a_source(name: str) -> None:
    for entry, table in catalogue(name).items():
        assert table.get("source"), f"{name}.{entry}"


@pytest.mark.parametrize(
    ("reported", "device"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA H200", "h200-141gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA B200", "b200-180gb"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("AMD Instinct MI250X", "mi250x-gcd"),
        ("AMD Instinct MI250X/MI250", "mi250x-gcd"),
        ("AMD Instinct MI250X / MI250", "mi250x-gcd"),
        ("AMD Instinct MI250", "mi250-gcd"),
        ("AMD Instinct MI300A", "mi300a"),
        ("AMD Instinct MI325X", "mi325x"),
        ("AMD Instinct MI350X", "mi350x"),
        ("AMD Instinct MI355X", "mi355x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Intel(R) Data Center GPU Max 1550", "pvc-tile"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        # Other boards, whose rates are not these.
        ("NVIDIA H20-3e", None),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", None),
        ("NVIDIA H100 96GB HBM3", None),
        ("NVIDIA GH200 144G HBM3e", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA A10", None),
        ("", None),
    ],
)
def test_devices_are_known_by_the_name_that_their_driver_reports(
    reported: str, device: str | None
) -> None:
    found = known_device(reported)
    assert (found["device"] if found else None) == device


@pytest.mark.parametrize("key", catalogue("devices"))
def test_devices_are_known_by_their_own_key(key: str) -> None:
    assert known_device(key) == device_preset(key)


def test_no_name_is_two_presets() -> None:
    names = [name for kind in CATALOGUES for name in preset_names(kind)]
    assert len(names) == len(set(names))


def test_presets_are_listed_and_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    frontrunner(["presets"], standalone_mode=False)
    listed = capsys.readouterr().out
    assert "…" not in listed
    assert all(f"\n{name} " in listed for kind in CATALOGUES for name in preset_names(kind))
    frontrunner(["presets", "dgx-h100"], standalone_mode=False)
    assert 'source = "NVIDIA DGX H100 datasheet' in capsys.readouterr().out
    frontrunner(["presets", "dgx-h100", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["clusters"]["dgx-h100"]["devices_per_node"] == 8
    with pytest.raises(InvalidInput, match='NAME = "dgx-h10": expected a preset'):
        frontrunner(["presets", "dgx-h10"], standalone_mode=False)


def test_presets_do_not_share_what_they_hand_out() -> None:
    model_preset("gpt2-small")["layers"] = 1
    assert model_preset("gpt2-small")["layers"] == 12


@pytest.mark.parametrize(
    ("given", "hint"), [("gpt2-smal", "gpt2-small"), ("llama-3-8", "llama-3-8b")]
)
def test_an_unknown_model_names_the_nearest(given: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        model_preset(given)
    assert caught.value.hint == f"did you mean '{hint}'?"


def campaign(model_table: dict[str, Any], cluster_table: dict[str, Any], tmp_path: Any) -> Any:
    table = {
        "model": model_table,
        "cluster": cluster_table,
        "problem": {"sequence_length": 1024, "global_batch": 64},
        "space": {},
    }
    return parse_campaign(table, default_name="t", base=tmp_path).spec.problem


@pytest.mark.parametrize("base", [{}, {"preset": "dgx-h100"}])
def test_a_device_by_another_name_is_the_same_device(base: dict[str, Any]) -> None:
    by_name, by_key = (
        parse_cluster(base | {"devices_per_node": 8, "device": name})
        for name in ("H100", "h100-80gb")
    )
    assert by_name == by_key


def test_a_file_s_own_fields_go_before_the_preset_s(tmp_path: Any) -> None:
    found = campaign(
        {"preset": "llama-3-8b", "layers": 4, "name": "short"},
        {"preset": "frontier", "nodes": 16},
        tmp_path,
    )
    assert (
        len(found.model.layers),
        found.model.hidden,
        found.model.attention.kv_heads,
        found.model.name,
    ) == (
        4,
        4096,
        8,
        "short",
    )
    assert (found.cluster.devices, found.cluster.name) == (128, "frontier")


def test_heads_and_feed_forward_follow_from_what_is_given(tmp_path: Any) -> None:
    found = campaign(
        {"preset": "gpt2-small", "hidden": 96, "heads": 6},
        {"device": "mi300x", "devices_per_node": 2},
        tmp_path,
    )
    assert (found.model.attention.kv_heads, found.model.feed_forward.ffn_hidden) == (6, 384)
    assert (found.cluster.memory_gib_per_device, found.cluster.backend, found.cluster.devices) == (
        192,
        "rocm",
        2,
    )
