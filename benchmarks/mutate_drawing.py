"""Mutations of one node on one line, in function bodies. `mutate.py` draws and judges them."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
SKIPPED = (ast.Raise, ast.JoinedStr, ast.match_case)
"""Messages; nodes inside f-strings, whose positions Python 3.11 does not tell; patterns."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One node of one line replaced. `function` is the qualified name of the function around it."""

    path: Path
    line: int
    function: str
    before: str
    after: str
    source: str
    """The whole mutated file. Its lines have the same numbers as before."""


def of_expression(node: ast.AST, *, compared: bool) -> Iterator[ast.expr]:
    """Yield the expressions that may replace `node`; `compared`: it is part of a comparison."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[index] = COMPARISONS[type(operator)]()
            yield changed
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield ast.BinOp(left=node.left, op=OPERATORS[type(node.op)](), right=node.right)
    elif isinstance(node, ast.BoolOp):
        operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(op=operator, values=node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield ast.Constant(node.value + 1)
        elif isinstance(node.value, str) and compared:
            yield ast.Constant(node.value + "?")


def of_statement(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements that may replace `node`."""
    if isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        yield ast.AugAssign(target=node.target, op=OPERATORS[type(node.op)](), value=node.value)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield ast.Return(ast.Constant(None))


def replacements(
    node: ast.AST, *, scope: str = "", function: str = "", compared: bool = False
) -> Iterator[tuple[Any, ast.AST, str]]:
    """Yield (a node in `node`, what may replace it, the qualified name of the function around it).

    Args:
        node: A part of a module's syntax tree.
        scope: What stands before the qualified name of a function defined here.
        function: The qualified name of the innermost function around the node, or nothing.
        compared: The node is part of a comparison.
    """
    if isinstance(node, SKIPPED) or getattr(node, "name", "") == "__repr__":
        return
    if function:
        for new in (*of_expression(node, compared=compared), *of_statement(node)):
            yield node, new, function
        if isinstance(node, ast.If | ast.IfExp):
            yield node.test, ast.UnaryOp(ast.Not(), node.test), function
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        children = list(node.body)  # not decorators, defaults and annotations
        name = scope + node.name
        function = "" if isinstance(node, ast.ClassDef) else name
        scope = f"{name}.<locals>." if function else f"{name}."
    elif isinstance(node, ast.AnnAssign):
        children = [node.value] if node.value else []
    if not isinstance(node, ast.Tuple | ast.List | ast.Set):
        compared = isinstance(node, ast.Compare)
    for child in children:
        yield from replacements(child, scope=scope, function=function, compared=compared)


def mutations(path: Path) -> Iterator[Mutation]:
    """Yield every mutation of the functions of a file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for node, new, function in replacements(ast.parse(text)):
        if node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1].encode()  # positions count bytes
        replaced = ast.unparse(new)
        if isinstance(new, ast.expr):
            replaced = f"({replaced})"
        changed = line[: node.col_offset] + replaced.encode() + line[node.end_col_offset :]
        yield Mutation(
            path=path,
            line=node.lineno,
            function=function,
            before=line.decode().strip(),
            after=changed.decode().strip(),
            source="".join([*lines[: node.lineno - 1], changed.decode(), *lines[node.lineno :]]),
        )


def draw(paths: list[Path], count: int, seed: int) -> list[Mutation]:
    """Draw lines uniformly, each at most once, and one mutation of each line."""
    by_line: dict[tuple[Path, int], list[Mutation]] = {}
    for path in sorted(paths):
        for mutation in mutations(path):
            by_line.setdefault((path, mutation.line), []).append(mutation)
    generator = random.Random(seed)
    drawn = generator.sample(sorted(by_line), min(count, len(by_line)))
    return [generator.choice(by_line[line]) for line in drawn]
