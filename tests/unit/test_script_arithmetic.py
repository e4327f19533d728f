"""Arithmetic in the scripts of other tools: its value is bash's own, or it is not known."""

from __future__ import annotations

import random
import re
import shutil
import subprocess

import pytest

from frontrunner.evaluators.export.arithmetic import computed
from frontrunner.evaluators.export.reading import Given
from frontrunner.evaluators.export.shell import read_script
from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.spaces.errors import InvalidInput
from support.formats import problem

VARIABLES = {"A": "8", "B": "-3", "OCTAL": "010", "EMPTY": ""}
EXPRESSIONS = (
    "A*2", "7/B", "-7/2", "-7%3", "7%B", "2**3**2", "-2**2", "2**0", "A-3-2", "A-(3-2)", "- -3",
    "1+2*3", "A>B", "A>=8 && B<0", "0 || 0", "!A", "!A==0", "1<2<3", "3>2>1", "1==1!=0",
    "A>4 ? 2 : 1/0", "0 ? 1/0 : 3", "0 && 1/0", "1 || 1/0", "1 ? 0 ? 4 : 5 : 6", "010+1", "0x1F",
    "OCTAL", "EMPTY+1", " A ", "", "+A", "9223372036854775807", "(((A)))", "A/2*2", "A%5*2",
)  # fmt: skip


def in_bash(expressions: list[str]) -> list[int]:
    """Return what bash itself computes."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    lines = [f"{name}='{value}'" for name, value in VARIABLES.items()]
    lines += [f"echo $(({expression}))" for expression in expressions]
    found = subprocess.run(
        [bash], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    assert not found.stderr
    return [int(line) for line in found.stdout.split()]


def drawn(draw: random.Random, depth: int) -> str:
    """Return a random expression of operators that never fail."""
    if not depth:
        return draw.choice(["A", "B", "3", "-2", "010", "0", "EMPTY"])
    left, right = drawn(draw, depth - 1), drawn(draw, depth - 1)
    if draw.random() < 0.2:
        return f"{left} ? {right} : {drawn(draw, depth - 1)}"
    if draw.random() < 0.3:
        return f"({left} - {right}) {draw.choice(['/ 3', '% B', '* A'])}"
    operators = ["+", "-", "*", "<", ">", "<=", ">=", "==", "!=", "&&", "||"]
    return f"{left} {draw.choice(operators)} {right}"


def test_arithmetic_is_that_of_bash() -> None:
    draw = random.Random(5)
    expressions = [*EXPRESSIONS, *(drawn(draw, depth) for depth in (1, 2, 3) for _ in range(60))]
    assert [computed(one, VARIABLES.get) for one in expressions] == in_bash(expressions)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("A/0", "8 / 0 divides by 0"),
        ("A%EMPTY", "8 % 0 divides by 0"),
        ("2**-1", "negative exponent"),
        ("2**64", "does not fit in 64 bits"),
        ("9223372036854775807+1", "does not fit in 64 bits"),
        ("99999999999**99999999999", "does not fit in 64 bits"),
        ("A*NODES", "NODES is not assigned before"),
        ("A*WORD", 'WORD is "many", which is no number'),
        ("A*OTHER", r"OTHER is \$SLURM_NNODES, which is not known here"),
        ("A*${SLURM_NNODES}", r"\$\{SLURM_NNODES} is not known here"),
        *(
            (text, "is not computed here")
            for text in (
                "08",
                "1_000",
                "A B",
                "A~B",
                "A&B",
                "A++",
                "(A",
                "A)",
                "1.5",
                "2#101",
                "9" * 5000,
            )
        ),
        ("(" * 200 + "1" + ")" * 200, "is not computed here"),
    ],
)
def test_arithmetic_that_is_not_known_says_why(expression: str, why: str) -> None:
    found = computed(expression, (VARIABLES | {"WORD": "many", "OTHER": "$SLURM_NNODES"}).get)
    assert isinstance(found, str)
    assert re.search(why, found)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("G=8; N=2\nV=$((G*N))", "16"),
        ("G=8; N=2\nV=$(( $G * ${N} / 3 ))", "5"),
        ("G=8\nV=$((G > 4 ? 2 : 1))", "2"),
        ("G=8\nV=$((${M:-2} * G))", "16"),
        ("((V = (1+2)*(3+4)))", "21"),
        ("V=3\n((V *= 2, V += 1))", "7"),
        ("V=3\n(( V++ ))\n((--V)); let V+=4 'V = V * 2'", "14"),
        ("V=$((X = 5)); V=$X", "5"),
        ("G=010\nV=$(expr $G \\* 2 + 1)", "21"),
        ("G=8\nV=`expr $G / 3`", "2"),
        ("G=8\nV=1\nif (( G % 3 == 2 && G > 4 )); then V=2; fi", "2"),
        ("f() { echo $1; V=$(($1 + 1)); }\nf 4", "5"),
        ("for N in 4; do V=$((N * 2)); done", "8"),
    ],
)
def test_script_computes_what_bash_would(body: str, value: str) -> None:
    assert read_script(f"{body}\ntorchrun train.py --v $V").options == {"--v": value}


@pytest.mark.parametrize(
    "body",
    [
        "V=1\nwhile (( V < 8 )); do V=$((V * 2)); done",
        "V=1\nwhile (( V < 8 )); do ((V *= 2)); done",
        "V=3\nwhile (( --V )); do :; done",
        "V=0\nfor i in 1 2 3; do let V+=1; done",
        "V=1\nfor ((V=0; V<4; V++)); do :; done",
        "V=1\n(( X = (V = 3) + 1 ))",
        "V=1\n((V <<= 2))",
        "V=1\n[ -f file ] && ((V = 2))",
        "V=$((1/0))",
        "V=1\n((V = 2, V = $UNKNOWN))",
        "V=$(expr $UNKNOWN \\* 2)",
        "V=`expr length abc`",
        'V="a ` b"',
        f"V=$(expr {'9' * 5000} + 1)",
    ],
)
def test_a_value_that_the_script_may_change_otherwise_is_not_known(body: str) -> None:
    value = read_script(f"{body}\ntorchrun train.py --v $V").options["--v"]
    assert not (isinstance(value, str) and value.isdecimal())


def test_unknown_arithmetic_is_refused_with_its_option_its_line_and_the_reason() -> None:
    text = (
        "GPUS=8\nNODES=$SLURM_NNODES\nWORLD=$((GPUS * NODES))\n"
        "torchrun t.py --bf16 --micro-batch-size 1 --global-batch-size $WORLD"
    )
    with pytest.raises(InvalidInput) as refused:
        TOOLS["megatron-lm"].read(problem(), Given(text=text))
    assert "--global-batch-size" in str(refused.value)
    assert refused.value.hint == (
        "line 3: NODES is $SLURM_NNODES, which is not known here; write the number there"
    )
    devices = text.replace("$SLURM_NNODES", "$(nvidia-smi --format=csv,noheader | wc -l)")
    with pytest.raises(InvalidInput) as refused:
        TOOLS["megatron-lm"].read(problem(), Given(text=devices))
    assert str(refused.value.hint).startswith(
        "line 3: NODES is $(nvidia-smi --format=csv,noheader | wc -l), which is not known here"
    )
    known = TOOLS["megatron-lm"].read(
        problem(), Given(text=text.replace("=$SLURM_NNODES", "=2"), stated={"devices": 16})
    )
    assert known.accumulation == 1
