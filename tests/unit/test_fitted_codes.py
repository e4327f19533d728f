"""Constants fitted to one training code's steps: whose they are, and what is left unknown of
them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frontrunner.config.campaign import parse_cluster, read_cluster_file
from frontrunner.evaluators.analytic.accuracy_bounds import fitted_row_error, log_bounds
from frontrunner.evaluators.analytic.codes import CODES, coded, known_as
from frontrunner.evaluators.analytic.estimates import plan
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.priors import DEVIATIONS, LEARNED, SHIPPED_SHARE, directions
from frontrunner.evaluators.diagnostics.calibration import cluster_toml
from frontrunner.spaces.cluster import ByPrecision, Cluster, FittedCode, FittedConstant
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.problem import SoftwareSettings
from support.analytic import A100, PROBLEM, recipe, work

NANOTRON = CODES["nanotron"]
MATMUL = FittedConstant(name="matmul", value=0.9, deviation=0.05)
MEMORY = FittedConstant(name="memory", value=0.7, deviation=0.05, correlations=(-0.9,))
NETWORK = FittedConstant(name="network_links", value=0.8, deviation=0.02)


def fit(*constants: FittedConstant, **changes: object) -> FittedCode:
    stated = {
        "code": "nanotron",
        "rows": 200,
        "problems": 20,
        "nodes": 2,
        "error": ByPrecision(fp16=0.04),
    } | changes
    return FittedCode(constants=constants, **stated)  # type: ignore[arg-type]


def fitted(*constants: FittedConstant, **changes: object) -> Cluster:
    return replace(A100, fitted=(fit(*constants, **changes),))


def width(cluster: Cluster, code: str = "nanotron", **shape: int) -> float:
    bounds = log_bounds(cluster, "fp16", CODES[code], work(recipe(**shape)), np.array([False]))
    return float(np.hypot(*bounds)[0])


def test_log_bounds_of_another_code_are_as_if_nothing_were_fitted() -> None:
    cluster = fitted(MATMUL)
    assert width(cluster) < width(A100)
    for code in ("megatron-lm", "unknown"):
        assert width(cluster, code) == width(A100, code)


def test_plan_names_the_fit_that_it_uses_and_the_one_that_it_does_not() -> None:
    problem = replace(PROBLEM, cluster=fitted(MATMUL))
    own, other = (
        plan([recipe()], replace(problem, software=SoftwareSettings(code=code))).trust.remarks
        for code in ("nanotron", "megatron-lm")
    )
    assert own == (
        "constants are fitted to 200 steps of nanotron on up to 2 nodes (the cluster file)",
    )
    assert other == (
        "the cluster file's fit to steps of nanotron in fp16 is not used for megatron-lm in fp16",
    )


def test_known_as_tells_unknown_codes_apart_by_what_is_stated_of_them() -> None:
    plain, stated = (
        coded(SoftwareSettings(code="unknown", attention=kind)) for kind in (None, "flash-1")
    )
    assert known_as(plain) == "unknown"
    assert known_as(stated) == "unknown, attention flash-1"
    assert known_as(coded(SoftwareSettings(code="nanotron", attention="flash-1"))) == "nanotron"
    cluster = fitted(MATMUL, code="unknown, attention flash-1")
    assert [Machine.of(cluster, "fp16", code).efficiencies.matmul for code in (plain, stated)] == [
        1.0,
        0.9,
    ]


def test_directions_of_a_fit_add_up_to_its_covariance() -> None:
    priors = {name: DEVIATIONS.get(name, 0.7) for name in LEARNED}
    unknown = directions(priors, fit(MATMUL, MEMORY), LEARNED)
    columns = np.array([[one.get(name, 0.0) for one in unknown] for name in LEARNED])
    expected = np.diag([priors[name] ** 2 for name in LEARNED])
    both = [list(LEARNED).index(name) for name in ("matmul", "memory")]
    expected[np.ix_(both, both)] = 0.05**2 * np.array([[1, -0.9], [-0.9, 1]])
    np.testing.assert_allclose(columns @ columns.T, expected, atol=1e-12)
    assert [max(one, key=lambda name: abs(one[name])) for one in unknown] == list(LEARNED)


def test_log_bounds_are_narrower_where_constants_trade_off() -> None:
    alike = replace(MEMORY, correlations=(0.9,))
    assert width(fitted(MATMUL, MEMORY)) < width(fitted(MATMUL, alike))


def test_fitted_row_error_is_larger_with_few_rows_or_a_single_problem() -> None:
    of = [fit(rows=rows, problems=problems, error=ByPrecision(fp16=0.01)) for rows, problems in
          ((200, 40), (200, 1), (6, 1))]  # fmt: skip
    many, alike, few = (fitted_row_error(one, "fp16") for one in of)
    assert many < 0.03
    assert few > alike > 2 * many


def test_log_bounds_on_more_nodes_than_were_fitted_do_not_know_the_network() -> None:
    shape = {
        "devices": 64,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "micro_batch_seqs": 1,
        "accumulation": 1,
    }
    seen, beyond = (width(fitted(NETWORK, nodes=nodes), **shape) for nodes in (8, 1))
    assert seen < beyond
    unseen = SHIPPED_SHARE * DEVIATIONS["network_links"]
    assert beyond == pytest.approx(
        width(fitted(replace(NETWORK, deviation=unseen), nodes=8), **shape),
        rel=0.1,
    )


def test_cluster_file_keeps_a_fit(tmp_path: Path) -> None:
    cluster = fitted(MATMUL, MEMORY)
    path = tmp_path / "cluster.toml"
    path.write_text(cluster_toml(cluster, {}, []), encoding="utf-8")
    assert read_cluster_file(path).fitted == cluster.fitted


def test_campaign_cannot_state_a_constant_that_its_cluster_file_has_as_fitted(
    tmp_path: Path,
) -> None:
    (tmp_path / "fitted.toml").write_text(cluster_toml(fitted(MATMUL), {}, []), encoding="utf-8")
    given = {"file": str(tmp_path / "fitted.toml"), "efficiencies": {"memory": 0.8}}
    assert parse_cluster(given).fitted == fitted(MATMUL).fitted
    with pytest.raises(
        InvalidInput, match=r"efficiencies.matmul = 0.8: expected no value here: .*nanotron"
    ):
        parse_cluster(given | {"efficiencies": {"matmul": 0.8}})


@pytest.mark.parametrize(
    ("was", "becomes", "refusal"),
    [
        ('name = "memory"', 'name = "memori"', "unknown key cluster.fitted.constants.memori"),
        (
            'name = "memory"',
            'name = "matmul"',
            "constants.matmul = .*: expected one entry for each constant",
        ),
        (
            "correlations = [-0.900]",
            "correlations = []",
            "constants.memory.correlations = .*: expected 1 numbers",
        ),
        ("deviation = 0.05", "deviation = 0.0", "cluster.fitted.constants.matmul.deviation = 0.0"),
        ("fp16 = 0.04", "fp8 = 0.04", "cluster.fitted.error.fp8 = 0.04"),
        ("nodes = 2", "nodes = 0", "cluster.fitted.nodes = 0"),
    ],
)
def test_cluster_file_with_an_impossible_fit_is_refused_by_its_key(
    tmp_path: Path, was: str, becomes: str, refusal: str
) -> None:
    path = tmp_path / "cluster.toml"
    text = cluster_toml(fitted(MATMUL, MEMORY), {}, [])
    assert was in text
    path.write_text(text.replace(was, becomes), encoding="utf-8")
    with pytest.raises(InvalidInput, match=refusal):
        read_cluster_file(path)
