"""Unit tests of `make mutate`: what is drawn, and what becomes of a mutant."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from mutate import imports, judge
from mutate_drawing import Mutation, draw, mutations

SOURCE = '''"""Two functions."""


def larger(first, second):
    """Return the larger number."""
    if first > second:
        return first
    return second


class Shelf:
    def room(self, books: int = 3) -> int:
        if books in (1, "one"):
            raise ValueError("not " + "one")
        return 10 - books * 2
'''


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "mutated_module.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("mutated_module", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def mutation_of(module: ModuleType, after: str) -> Mutation:
    assert module.__file__ is not None
    return next(each for each in mutations(Path(module.__file__)) if each.after == after)


def test_mutations_are_those_of_function_bodies(module: ModuleType) -> None:
    assert module.__file__ is not None
    found = [(each.line, each.function, each.after) for each in mutations(Path(module.__file__))]

    assert found == [
        (6, "larger", "if (not first > second):"),
        (6, "larger", "if (first >= second):"),
        (7, "larger", "return None"),
        (8, "larger", "return None"),
        (13, "Shelf.room", "if (not books in (1, 'one')):"),
        (13, "Shelf.room", "if (books not in (1, 'one')):"),
        (13, "Shelf.room", 'if books in ((2), "one"):'),
        (13, "Shelf.room", "if books in (1, ('one?')):"),
        (15, "Shelf.room", "return None"),
        (15, "Shelf.room", "return (10 + books * 2)"),
        (15, "Shelf.room", "return (11) - books * 2"),
        (15, "Shelf.room", "return 10 - (books / 2)"),
        (15, "Shelf.room", "return 10 - books * (3)"),
    ]


def differences(first: ast.AST, second: ast.AST) -> int:
    """Count the topmost nodes in which two syntax trees differ."""
    if type(first) is not type(second):
        return 1
    if isinstance(first, ast.Constant) and isinstance(second, ast.Constant):
        return int(first.value != second.value)
    children = (ast.iter_child_nodes(first), ast.iter_child_nodes(second))
    return sum(differences(*pair) for pair in zip(*children, strict=True))


def test_mutation_changes_one_node_on_one_line(module: ModuleType) -> None:
    assert module.__file__ is not None
    for mutation in mutations(Path(module.__file__)):
        changed = [
            number
            for number, (before, after) in enumerate(
                zip(SOURCE.splitlines(), mutation.source.splitlines(), strict=True), start=1
            )
            if before != after
        ]
        assert changed == [mutation.line]
        assert differences(ast.parse(mutation.source), ast.parse(SOURCE)) == 1


def test_draw_repeats_with_its_seed(module: ModuleType) -> None:
    assert module.__file__ is not None
    paths = [Path(module.__file__)]

    assert draw(paths, 4, seed=1) == draw(paths, 4, seed=1)
    assert draw(paths, 4, seed=1) != draw(paths, 4, seed=2)
    assert len({each.line for each in draw(paths, 9, seed=1)}) == 5


def test_judge_kills_what_a_test_sees(module: ModuleType) -> None:
    mutant = mutation_of(module, "return (10 + books * 2)")

    assert (
        judge(mutant, [lambda: True, lambda: module.Shelf().room(4) == 2], seconds=60) == "killed"
    )
    assert module.Shelf().room(4) == 2, "the mutation stays in the fork"


def test_judge_lets_an_equivalent_mutant_survive(module: ModuleType) -> None:
    mutant = mutation_of(module, "if (first >= second):")

    assert judge(mutant, [lambda: module.larger(2, 2) == 2], seconds=60) == "survived"


def test_judge_is_undecided_without_time(module: ModuleType) -> None:
    mutant = mutation_of(module, "if (first >= second):")

    assert judge(mutant, [lambda: True], seconds=-1) == "undecided"


def test_judge_does_not_apply_to_functions_that_are_gone(module: ModuleType) -> None:
    mutant = mutation_of(module, "if (first >= second):")
    del module.larger

    assert judge(mutant, [], seconds=60) == "not applicable"


def test_modules_named_by_a_text_are_imported(tmp_path: Path) -> None:
    sources = {
        "top.a": 'def load():\n    import top.b\n    return "top.c:run", "d:run", "top"\n',
        "top.b": "from top import c\n",
        "top.c": 'LOADED = "top.d"\n',
        "top.d": "",
    }
    paths = {name: tmp_path / f"{name}.py" for name in sources}
    for name, path in paths.items():
        path.write_text(sources[name])
    assert imports(paths) == {
        "top.a": {"top.b", "top.c", "top.d"},
        "top.b": {"top.c"},
        "top.c": {"top.d"},
        "top.d": set(),
    }
