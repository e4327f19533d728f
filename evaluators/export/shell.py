"""Options of a bash script, found without running it.

The script is parsed, and the paths through it are followed. A test whose operands are known decides
its branch. A test that depends on anything else (an environment variable, a file, another command)
opens one path for each of its outcomes. An option that has the same value on all paths is known;
any other is `Undecided`, and whoever asks for it is told on which test it depends.

This is a subset of bash: lists, `if`, `case`, loops (whose body is followed once), functions,
arrays, quotes, plain expansions, and arithmetic outside of repeated bodies, also by `let` and
`expr`. The output of other commands is never known.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from frontrunner.evaluators.export.arithmetic import computed
from frontrunner.spaces.errors import InvalidInput

MAX_VALUE_CHARACTERS = 16 * 1024
"""A variable that grows beyond this, as one repeated within itself does, counts as unknown."""
MAX_PATHS = 256
MAX_DEPTH = 40
MAX_EXPANDED_CHARACTERS = 20_000_000
SEVERAL_VALUES = frozenset({"--cp-comm-type", "--num-experts"})
"""Options that take all plain words after them, in Megatron-LM and Megatron-DeepSpeed."""
END_OF_ARRAY = "\x00"
"""Ends the words of an array, so that its last option takes no word from outside as its value."""
NEVER_TRAIN = frozenset({
    "[", "[[", "cat", "cd", "chmod", "conda", "cp", "echo", "exit", "git", "hostname", "ls",
    "mkdir", "module", "mv", "nvidia-smi", "pip", "popd", "printf", "pushd", "read", "return", "rm",
    "sed", "set", "shift", "shopt", "sleep", "source", ".", "test", "trap", "ulimit", "unset",
    "wait", "which",
})  # fmt: skip
"""Commands whose options are not a trainer's."""
ASSUMED_TO_SUCCEED = frozenset({
    ":", ".", "cd", "conda", "declare", "echo", "export", "local", "mkdir", "module", "pip",
    "printf", "pushd", "readonly", "set", "shopt", "source", "true", "typeset", "ulimit", "unset",
})  # fmt: skip
DECLARATIONS = frozenset({"declare", "export", "local", "readonly", "typeset"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?(\+?)=")
_BRACED = re.compile(
    r"\{([A-Za-z_][A-Za-z0-9_]*|[0-9@*])(?:\[[@*]\])?(?:(:?-)([^{}]*))?\}", re.DOTALL
)
_COMPARISONS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_SETS = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_STEPS = re.compile(r"\s*(?:(\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(\+\+|--))\s*")
_CHANGES = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
"""Forms in which arithmetic changes a variable: `x = 1` and `x += 1`, `x++`, and any."""
_CLOSING = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})


@dataclass(frozen=True)
class Undecided:
    """A value that differs between the paths through a script, and the test that it depends on."""

    test: str

    def refuse(self, name: str) -> InvalidInput:
        """Return the error for an option or variable that has to be known."""
        return InvalidInput(
            f"{name} depends on {self.test}, which is not known here",
            hint="assign what the test asks for at the top of the script, or give the arguments of"
            " one run alone",
        )


Value = str | bool | Undecided


@dataclass(frozen=True)
class Script:
    """The options of a script's commands, or without commands of its arrays, and its variables."""

    options: Mapping[str, Value]
    variables: Mapping[str, Value]
    uncomputed: Mapping[str, str] = field(default_factory=dict)
    """Arithmetic whose value is not known, without spaces -> its line, and why."""


# --- words and operators -------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    """A word as it is written, an operator, or an assignment of an array with its words."""

    kind: str
    text: str
    line: int
    items: tuple[str, ...] = ()


_OPERATORS = ("&&", "||", ";;", "((", "<<<", "<<-", "<<", ">>", "<", ">", ";", "&", "|", "(", ")")


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._line = text, 0, 1
        self._here: list[str] = []

    def tokens(self) -> list[Token]:
        """Return all tokens; the end of a line is the operator of a line break."""
        found: list[Token] = []
        while (token := self._next()) is not None:
            found.append(token)
        return found

    def _error(self, what: str, line: int | None = None) -> InvalidInput:
        return _unreadable(what, line or self._line)

    def _skip_blanks(self) -> None:
        text = self._text
        while self._at < len(text):
            if text.startswith("\\\n", self._at):
                self._at += 2
                self._line += 1
            elif text[self._at] in " \t\r":
                self._at += 1
            elif text[self._at] == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            else:
                return

    def _next(self) -> Token | None:
        self._skip_blanks()
        text, line = self._text, self._line
        if self._at >= len(text):
            return None
        if text[self._at] == "\n":
            self._at += 1
            self._line += 1
            self._skip_here_documents()
            return Token("operator", "\n", line)
        for operator in _OPERATORS:
            if text.startswith(operator, self._at):
                return self._operator(operator, line)
        word = self._word()
        if word.isdecimal() and text[self._at : self._at + 1] in ("<", ">") and len(word) == 1:
            return self._next()  # the number of a redirected file
        assigns = _ASSIGNS.fullmatch(word)
        if assigns is not None and text[self._at : self._at + 1] == "(":
            self._at += 1
            return Token("array", word, line, tuple(self._array_items(line)))
        return Token("word", word, line)

    def _operator(self, operator: str, line: int) -> Token | None:
        if operator == "((":
            end = self._closing_parenthesis(self._at)
            inside = self._text[self._at + 2 : end - 2]
            if self._text[end - 2 : end] != "))":
                raise self._error('"((" without "))"')
            self._at = end
            self._line += inside.count("\n")
            return Token("arithmetic", inside, line)
        self._at += len(operator)
        if operator in ("<<", "<<-"):
            self._skip_blanks()
            self._here.append(self._word().strip("\"'\\"))
            return self._next()
        if operator in ("<", ">", ">>", "<<<"):
            return self._redirection(line)
        if operator == "&" and self._text[self._at : self._at + 1] == ">":
            self._at += 1
            return self._redirection(line)
        return Token("operator", operator, line)

    def _redirection(self, line: int) -> Token | None:
        """Pass over the file that a command reads or writes."""
        if self._text[self._at : self._at + 1] in ("&", "|"):
            self._at += 1
        self._skip_blanks()
        if self._text[self._at : self._at + 1] == "(":  # of a process substitution
            self._at = self._closing_parenthesis(self._at)
        elif self._at < len(self._text) and self._text[self._at] not in "\n;":
            self._word()
        del line
        return self._next()

    def _skip_here_documents(self) -> None:
        for end in self._here:
            while self._at < len(self._text):
                stop = self._text.find("\n", self._at)
                stop = len(self._text) if stop < 0 else stop
                written = self._text[self._at : stop]
                self._at = stop + 1
                self._line += 1
                if written.strip("\t") == end:
                    break
        self._here.clear()

    def _array_items(self, line: int) -> Iterator[str]:
        while True:
            self._skip_blanks()
            if self._at >= len(self._text):
                raise self._error('an array without its ")"', line)
            letter = self._text[self._at]
            if letter == "\n":
                self._at += 1
                self._line += 1
            elif letter == ")":
                self._at += 1
                return
            elif letter in "(;&|<>":
                raise self._error(f'"{letter}" in an array')
            else:
                yield self._word()

    def _word(self) -> str:
        start, text = self._at, self._text
        while self._at < len(text):
            letter = text[self._at]
            if letter in " \t\r\n;&|<>()":
                break
            if letter == "\\":
                self._at += 2
            elif letter in "\"'`":
                self._at = self._closing_quote(self._at)
            elif letter == "$":
                self._at = self._end_of_expansion(self._at)
            else:
                self._at += 1
        self._at = min(self._at, len(text))
        word = text[start : self._at]
        if not word:
            raise self._error(f'"{text[self._at : self._at + 1]}" is not expected')
        self._line += word.count("\n")
        return word

    def _end_of_expansion(self, at: int) -> int:
        follows = self._text[at + 1 : at + 2]
        if follows == "(":
            return self._closing_parenthesis(at + 1)
        if follows == "{":
            end, depth = at + 2, 1
            while end < len(self._text) and depth:
                letter = self._text[end]
                if letter in "\"'":
                    end = self._closing_quote(end)
                    continue
                depth += {"{": 1, "}": -1}.get(letter, 0)
                end += 2 if letter == "\\" else 1
            return end
        return at + 1

    def _closing_parenthesis(self, at: int) -> int:
        depth = 0
        while at < len(self._text):
            letter = self._text[at]
            if letter in "\"'":
                at = self._closing_quote(at)
                continue
            depth += {"(": 1, ")": -1}.get(letter, 0)
            at += 2 if letter == "\\" else 1
            if not depth:
                return at
        raise self._error('"(" without ")"')

    def _closing_quote(self, at: int) -> int:
        quote, start = self._text[at], at
        at += 1
        while at < len(self._text):
            letter = self._text[at]
            if letter == quote:
                return at + 1
            at += 2 if letter == "\\" and quote != "'" else 1
        raise self._error(f"a {quote} without its end", self._text.count("\n", 0, start) + 1)


def _unreadable(what: str, line: int) -> InvalidInput:
    return InvalidInput(
        f"line {line} cannot be read as bash: {what}",
        hint="give the arguments of one run alone, as --name value",
    )


# --- statements ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assignment:
    """`NAME=value` or, where it is added to what is there, `NAME+=value`; of an array its words."""

    name: str
    adds: bool
    words: tuple[str, ...]
    is_array: bool
    indexed: bool = False


@dataclass(frozen=True)
class Command:
    """A simple command with the assignments before it."""

    line: int
    assignments: tuple[Assignment, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Test:
    """`[[ ... ]]` with its words and operators, or `(( ... ))`."""

    line: int
    words: tuple[str, ...]
    is_arithmetic: bool = False


@dataclass(frozen=True)
class If:
    """Conditions with their branches, and what follows `else`."""

    line: int
    branches: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class Case:
    """A word, and patterns with their branches."""

    line: int
    word: str
    branches: tuple[tuple[tuple[str, ...], tuple[Statement, ...]], ...]


@dataclass(frozen=True)
class For:
    """A variable that takes each of some words; no words where they are the script's arguments."""

    line: int
    name: str
    words: tuple[str, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class While:
    """A body that is run while its condition holds, or until it does."""

    line: int
    condition: tuple[Statement, ...]
    body: tuple[Statement, ...]
    until: bool


@dataclass(frozen=True)
class Function:
    """A name for statements."""

    name: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Group:
    """Statements in braces or parentheses."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Chain:
    """Statements joined by `&&`, `||` and `|`; the first has no operator."""

    line: int
    parts: tuple[tuple[str, Statement], ...]


@dataclass(frozen=True)
class Negated:
    """A statement after `!`."""

    statement: Statement


Statement = Command | Test | If | Case | For | While | Function | Group | Chain | Negated


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def script(self) -> tuple[Statement, ...]:
        found = self._list(())
        if (token := self._peek()) is not None:
            raise _unreadable(f'"{token.text.strip()}" is not expected', token.line)
        return found

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    @property
    def _line(self) -> int:
        token = self._peek() or (self._tokens[-1] if self._tokens else None)
        return token.line if token else 1

    def _is(self, *texts: str, kind: str = "word") -> bool:
        token = self._peek()
        return token is not None and token.kind == kind and token.text in texts

    def _is_operator(self, *texts: str) -> bool:
        return self._is(*texts, kind="operator")

    def _take(self) -> Token:
        token = self._peek()
        if token is None:
            raise _unreadable("the script ends within a statement", self._line)
        self._at += 1
        return token

    def _expect(self, text: str, *, kind: str = "word") -> None:
        token = self._peek()
        if token is None or token.kind != kind or token.text != text:
            raise _unreadable(f'expected "{text}"', self._line)
        self._at += 1

    def _skip_breaks(self) -> None:
        while self._is_operator("\n", ";"):
            self._at += 1

    def _list(self, ends: tuple[str, ...]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _unreadable(f"more than {MAX_DEPTH} blocks within one another", self._line)
        while True:
            while self._is_operator("\n", ";", "&"):
                self._at += 1
            token = self._peek()
            if token is None or (token.kind == "word" and token.text in ends):
                break
            if token.kind == "operator" and token.text in (")", ";;"):
                break
            if token.kind == "word" and token.text in _CLOSING:
                raise _unreadable(f'"{token.text}" is not expected', token.line)
            found.append(self._chain())
        self._depth -= 1
        return tuple(found)

    def _chain(self) -> Statement:
        line, parts = self._line, [("", self._statement())]
        while self._is_operator("&&", "||", "|"):
            operator = self._take().text
            self._skip_breaks()
            parts.append((operator, self._statement()))
        return parts[0][1] if len(parts) == 1 else Chain(line, tuple(parts))

    def _statement(self) -> Statement:  # noqa: PLR0911 - one for each kind of statement
        token = self._take()
        if token.kind == "arithmetic":
            return Test(token.line, (token.text,), is_arithmetic=True)
        if token.kind == "operator" and token.text == "(":
            body = self._list(())
            self._expect(")", kind="operator")
            return Group(body)
        if token.kind == "word":
            if token.text == "!":
                return Negated(self._statement())
            if token.text == "[[":
                return self._test(token.line)
            if (block := self._block(token)) is not None:
                return block
            if self._is_operator("(") and _NAME.fullmatch(token.text.replace("-", "_")):
                self._take()
                self._expect(")", kind="operator")
                return self._function(token.text)
        self._at -= 1
        return self._command()

    def _block(self, token: Token) -> Statement | None:  # noqa: PLR0911 - one for each kind of block
        match token.text:
            case "if":
                return self._if(token.line)
            case "case":
                return self._case(token.line)
            case "for" | "select":
                return self._for(token.line)
            case "while" | "until":
                condition = self._list(("do",))
                body = self._do()
                return While(token.line, condition, body, token.text == "until")
            case "{":
                group = Group(self._list(("}",)))
                self._expect("}")
                return group
            case "function":
                name = self._take().text
                if self._is_operator("("):
                    self._take()
                    self._expect(")", kind="operator")
                return self._function(name)
        return None

    def _function(self, name: str) -> Function:
        self._skip_breaks()
        return Function(name, (self._statement(),))

    def _do(self) -> tuple[Statement, ...]:
        self._skip_breaks()
        self._expect("do")
        body = self._list(("done",))
        self._expect("done")
        return body

    def _if(self, line: int) -> If:
        otherwise: tuple[Statement, ...] = ()
        branches: list[tuple[tuple[Statement, ...], tuple[Statement, ...]]] = []
        while True:
            condition = self._list(("then",))
            self._expect("then")
            branches.append((condition, self._list(("elif", "else", "fi"))))
            if self._is("elif"):
                self._take()
                continue
            if self._is("else"):
                self._take()
                otherwise = self._list(("fi",))
            self._expect("fi")
            return If(line, tuple(branches), otherwise)

    def _case(self, line: int) -> Case:
        word = self._take().text
        self._skip_breaks()
        self._expect("in")
        branches: list[tuple[tuple[str, ...], tuple[Statement, ...]]] = []
        while True:
            self._skip_breaks()
            if self._is("esac"):
                self._take()
                return Case(line, word, tuple(branches))
            if self._is_operator("("):
                self._take()
            patterns = [self._take().text]
            while self._is_operator("|"):
                self._take()
                patterns.append(self._take().text)
            self._expect(")", kind="operator")
            body = self._list(("esac",))
            if self._is_operator(";;"):
                self._take()
            branches.append((tuple(patterns), body))

    def _for(self, line: int) -> For:
        if (token := self._peek()) is not None and token.kind == "arithmetic":
            self._take()
            return For(line, "", (f"$(({token.text}))",), self._do())
        name, words = self._take().text, []
        self._skip_breaks()
        if self._is("in"):
            self._take()
            while (token := self._peek()) is not None and token.kind == "word":
                words.append(self._take().text)
        else:
            words = ["$@"]
        return For(line, name, tuple(words), self._do())

    def _test(self, line: int) -> Test:
        words: list[str] = []
        while not self._is("]]"):
            token = self._take()
            if token.text != "\n":
                words.append(token.text)
        self._take()
        return Test(line, tuple(words))

    def _command(self) -> Command:
        line, words = self._line, list[str]()
        assignments: list[Assignment] = []
        while (token := self._peek()) is not None and token.kind in ("word", "array"):
            self._at += 1
            assigns = _ASSIGNS.match(token.text)
            declares = bool(words) and words[0] in DECLARATIONS
            if assigns is not None and (not words or declares):
                is_array = token.kind == "array"
                value = token.items if is_array else (token.text[assigns.end() :],)
                assignments.append(
                    Assignment(assigns[1], bool(assigns[3]), value, is_array, bool(assigns[2]))
                )
            elif token.kind == "array":
                raise _unreadable('"(" is not expected', token.line)
            else:
                words.append(token.text)
        if not words and not assignments:
            token = self._take()
            raise _unreadable(f'"{token.text.strip()}" is not expected', token.line)
        return Command(line, tuple(assignments), tuple(words))


# --- paths ---------------------------------------------------------------------------------------


class _Exit(Exception):
    """The end of a path."""


class _Return(Exception):
    """The end of a function or of a turn of a loop."""


@dataclass
class _Choices:
    """What is taken for the tests that are not known: by place, and what else each could give."""

    taken: list[int]
    tests: dict[str, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    work: list[int] = field(default_factory=lambda: [0])

    def choose(self, test: str, outcomes: int) -> int:
        if test in self.tests:
            return self.taken[self.tests[test]]
        place = len(self.counts)
        self.tests[test] = place
        self.counts.append(outcomes)
        if place == len(self.taken):
            self.taken.append(0)
        return self.taken[place]


class _Path:
    """One path through a script."""

    def __init__(self, choices: _Choices) -> None:
        self.choices = choices
        self.variables: dict[str, str] = {}
        self.of_commands: dict[str, str | bool] = {}
        self.of_assignments: dict[str, str | bool] = {}
        self._functions: dict[str, tuple[Statement, ...]] = {}
        self._arguments: list[str] | None = None
        self._calls = 0
        self._waiting: str | None = None
        self._line = 1
        self._is_repeated = False
        self.uncomputed: dict[str, str] = {}

    def follow(self, statements: Sequence[Statement]) -> None:
        with suppress(_Exit, _Return):
            self._run(statements)

    @property
    def options(self) -> Mapping[str, str | bool]:
        return self.of_commands or self.of_assignments

    def _run(self, statements: Sequence[Statement]) -> bool | None:
        status: bool | None = True
        for statement in statements:
            self._line = getattr(statement, "line", self._line)
            status = self._one(statement)
        return status

    def _one(self, statement: Statement) -> bool | None:  # noqa: PLR0911 - one for each kind
        match statement:
            case Command():
                return self._command(statement)
            case Test():
                return self._tested(statement)
            case If():
                return self._if(statement)
            case Case():
                return self._case(statement)
            case For():
                return self._for(statement)
            case While():
                return self._while(statement)
            case Function():
                self._functions[statement.name] = statement.body
                return True
            case Group():
                return self._run(statement.body)
            case Negated():
                status = self._one(statement.statement)
                return None if status is None else not status
        return self._chain(statement)

    def _decided(self, statements: Sequence[Statement], line: int, *, status: bool | None) -> bool:
        """Return the status of a condition, and where it is not known what this path takes."""
        if status is not None:
            return status
        return bool(self.choices.choose(f"{self._text(statements)} (line {line})", 2))

    def _text(self, statements: Sequence[Statement]) -> str:
        """Return a condition as a reader finds it in the script."""
        texts = []
        for one in statements:
            match one:
                case Command():
                    texts.append(" ".join(one.words))
                case Test():
                    brackets = ("((", "))") if one.is_arithmetic else ("[[", "]]")
                    texts.append(" ".join((brackets[0], *one.words, brackets[1])))
                case Negated():
                    texts.append("! " + self._text((one.statement,)))
                case Chain():
                    parts = (f"{by} {self._text((part,))}".strip() for by, part in one.parts)
                    texts.append(" ".join(parts))
                case _:
                    texts.append("...")
        return shortened("; ".join(texts))

    def _if(self, statement: If) -> bool | None:
        for condition, body in statement.branches:
            if self._decided(condition, statement.line, status=self._run(condition)):
                return self._run(body)
        return self._run(statement.otherwise)

    def _chain(self, statement: Chain) -> bool | None:
        status = self._one(statement.parts[0][1])
        for place, (operator, part) in enumerate(statement.parts[1:]):
            before = tuple(one for _, one in statement.parts[: place + 1])
            if operator == "|":
                self._one(part)
                status = None
            elif status is None and not _acts((part,)):
                decisive = operator == "||"
                status = decisive if self._one(part) is decisive else None
            elif self._decided(before[-1:], statement.line, status=status) == (operator == "&&"):
                status = self._one(part)
            else:
                status = operator == "||"
        return status

    def _case(self, statement: Case) -> bool | None:
        word = self._expanded(statement.word)
        if is_known(word):
            for patterns, body in statement.branches:
                if any(fnmatch.fnmatchcase(word, self._expanded(one)) for one in patterns):
                    return self._run(body)
            return True
        bodies = [body for _, body in statement.branches]
        has_rest = any("*" in patterns for patterns, _ in statement.branches)
        test = f"case {shortened(statement.word)} (line {statement.line})"
        chosen = self.choices.choose(test, len(bodies) + (not has_rest))
        return self._run(bodies[chosen]) if chosen < len(bodies) else True

    def _for(self, statement: For) -> bool | None:
        if not statement.name:  # `for ((...))`
            self._forget_changed(statement.words[0])
        words = " ".join(map(self._expanded, statement.words)).replace(END_OF_ARRAY, " ").split()
        test = f"for {statement.name} (line {statement.line})"
        if not words:
            return True
        is_once = len(words) == 1 and is_known(words[0])
        if is_known(" ".join(words)):
            chosen = 0 if is_once else self.choices.choose(test, len(words))
            self.variables[statement.name] = words[chosen]
        else:
            self.variables.pop(statement.name, None)
            if not self.choices.choose(test, 2):
                return True
        if is_once:
            return self._body(statement.body)
        with self._repeated():
            return self._body(statement.body)

    def _while(self, statement: While) -> bool | None:
        with self._repeated():
            status = self._run(statement.condition)
            if self._decided(statement.condition, statement.line, status=status) != statement.until:
                self._body(statement.body)
        return True

    @contextmanager
    def _repeated(self) -> Iterator[None]:
        """Follow statements that the script runs an unknown number of times."""
        before, self._is_repeated = self._is_repeated, True
        try:
            yield
        finally:
            self._is_repeated = before

    def _body(self, body: Sequence[Statement]) -> bool | None:
        try:
            return self._run(body)
        except _Return:
            return None

    def _command(self, statement: Command) -> bool | None:  # noqa: C901, PLR0911, PLR0912
        name = self._expanded(statement.words[0]) if statement.words else ""
        is_declared = name in DECLARATIONS
        if not name or is_declared:
            for assignment in statement.assignments:
                self._assign(assignment)
        if not name:
            return True
        for assignment in () if is_declared else statement.assignments:
            # Variables of this command alone, which a reader may still ask for.
            value = " ".join(map(self._expanded, assignment.words))
            self.variables.setdefault(f"{assignment.name}=", value)
        if name in ("exit", "exec") and len(statement.words) <= 2:
            raise _Exit
        if name in ("return", "break", "continue"):
            raise _Return
        if name in ("[", "test"):
            return self._test_words([*statement.words[1:]])
        if name == "false":
            return False
        if name == "let":
            return self._holds([self._expanded(word) for word in statement.words[1:]])
        if name == "unset":
            for word in statement.words[1:]:
                self.variables.pop(word, None)
        if name == "read":
            for word in statement.words[1:]:
                self.variables.pop(word, None)
            return None
        words = [self._expanded(word) for word in statement.words]
        if name in self._functions:
            return self._call(name, words[1:])
        if name not in NEVER_TRAIN and not is_declared:
            is_argument = name.startswith("--")  # a line of a file of arguments
            waiting = self._waiting if len(words) == 1 else None
            if is_argument or waiting is not None:
                self._waiting = collect(words, self.of_assignments, waiting)
            else:
                collect(words, self.of_commands, None)
                self._waiting = None
        return True if name in ASSUMED_TO_SUCCEED else None

    def _call(self, name: str, arguments: list[str]) -> bool | None:
        if self._calls >= MAX_DEPTH:
            return None
        before, self._arguments = self._arguments, arguments
        self._calls += 1
        status = self._body(self._functions[name])
        self._calls -= 1
        self._arguments = before
        return status

    def _assign(self, assignment: Assignment) -> None:
        values = [self._expanded(word) for word in assignment.words]
        value = " ".join(values)
        collect([*values, END_OF_ARRAY], self.of_assignments, None)
        if assignment.indexed:
            self.variables.pop(assignment.name, None)
            return
        if assignment.is_array:
            value = f"{value} {END_OF_ARRAY}" if value else ""
        if assignment.adds:
            between = " " if assignment.is_array else ""
            value = f"{self.variables.get(assignment.name, '')}{between}{value}"
        self.variables.pop(assignment.name, None)
        if len(value) <= MAX_VALUE_CHARACTERS:
            self.variables[assignment.name] = value

    # --- expansions ---

    def _expanded(self, word: str) -> str:  # noqa: C901 - one case for each letter
        """Return a word without quotes, known variables filled in; unknown ones stay as written."""
        if not any(letter in word for letter in "$\"'\\`"):
            return word
        parts: list[str] = []
        at, is_quoted, size = 0, False, 0
        while at < len(word):
            letter = word[at]
            if letter == "'" and not is_quoted:
                end = word.index("'", at + 1)
                part, at = word[at + 1 : end], end + 1
            elif letter == '"':
                is_quoted, part, at = not is_quoted, "", at + 1
            elif letter == "\\":
                part, at = word[at + 1 : at + 2], at + 2
                if part == "\n":
                    part = " "
                elif is_quoted and part not in ('"', "\\", "$", "`"):
                    part = "\\" + part
            elif letter == "$":
                part, at = self._variable(word, at)
            elif letter == "`":
                end = (word.find("`", at + 1) + 1) or at + 1
                part, at = self._output(word[at:end], word[at + 1 : end - 1]), end
            else:
                part, at = letter, at + 1
            parts.append(part)
            size += len(part)
            if size > 2 * MAX_VALUE_CHARACTERS:
                return "$..."
        self.choices.work[0] += size
        if self.choices.work[0] > MAX_EXPANDED_CHARACTERS:
            raise InvalidInput("the script's variables grow without end")
        return "".join(parts)

    def _variable(self, word: str, at: int) -> tuple[str, int]:
        """Return the text of the variable at a dollar sign, and where it ends."""
        if braced := _BRACED.match(word, at + 1):
            value, end = self._value(braced[1]), braced.end()
            if braced[2] and (value is None or (braced[2] == ":-" and not value)):
                return self._expanded(braced[3]), end
        elif plain := _NAME.match(word, at + 1):
            value, end = self._value(plain[0]), plain.end()
        elif word[at + 1 : at + 2] in ("@", "*", *"0123456789"):
            end = at + 2
            value = self._value(word[at + 1])
        else:
            if word[at + 1 : at + 2] not in ("(", "{"):
                return "$", at + 1
            end = _Lexer(word)._end_of_expansion(at)
            written = word[at:end]
            if written.startswith("$((") and written.endswith("))"):
                return self._arithmetic(written, written[3:-2]), end
            if written.startswith("$("):
                return self._output(written, written[2:-1]), end
            value = None
        return (word[at:end] if value is None else value), end

    # --- arithmetic ---

    def _arithmetic(self, written: str, expression: str) -> str:
        """Return the value of an expansion, or the expansion without spaces if it is not known."""
        value = self._computed(self._expanded(expression))
        if self._is_repeated:
            value = "it is in a loop, whose number of turns is not known"
        if isinstance(value, str):
            why = value.replace(END_OF_ARRAY, "")
            kept = "".join(written.split())
            self.uncomputed[kept] = f"line {self._line}: {why}"
            return kept
        return str(value)

    def _output(self, written: str, command: str) -> str:
        """Return the output of `expr` of numbers; that of any other command stays as written."""
        if not re.match(r"\s*expr\s", command):
            return written
        words = [self._expanded(token.text) for token in _Lexer(command).tokens()][1:]
        if not all(re.fullmatch(r"-?\d{1,18}|[-+*/%()]", word, re.ASCII) for word in words):
            return written
        # `expr` has no octal numbers.
        decimal = [str(int(word)) if word[-1].isdecimal() else word for word in words]
        return self._arithmetic(written, " ".join(decimal))

    def _computed(self, text: str) -> int | str:
        """Return the value of an expression, or why it is not known, and assign what it assigns."""
        value: int | str = 0
        if not is_known(text):
            self._forget_changed(text)
            return computed(text, self._value)
        for part in text.split(","):
            if sets := _SETS.fullmatch(part):
                name, operator, right = sets.groups()
                changed = value = computed(
                    f"{name} {operator} ({right})" if operator else right, self._value
                )
            elif steps := _STEPS.fullmatch(part):
                name = steps[2] or steps[3]
                value = computed(name, self._value)
                changed = computed(f"{name} {(steps[1] or steps[4])[0]} 1", self._value)
                value = changed if steps[1] else value
            else:
                value = computed(part, self._value)
                self._forget_changed(part)
                continue
            self._forget_changed(part)
            if isinstance(changed, int) and not self._is_repeated:
                self.variables[name] = str(changed)
        return value

    def _holds(self, expressions: Sequence[str]) -> bool | None:
        """Return whether the last of some expressions is not 0, None where it is not known."""
        value = [self._computed(expression) for expression in expressions or ("0",)][-1]
        return None if isinstance(value, str) else value != 0

    def _forget_changed(self, expression: str) -> None:
        for first, second in _CHANGES.findall(expression):
            self.variables.pop(first or second, None)

    def _value(self, name: str) -> str | None:
        if name in ("@", "*"):
            return None if self._arguments is None else " ".join(self._arguments)
        if name.isdecimal():
            place = int(name) - 1
            if self._arguments is None or place < 0:
                return None
            return self._arguments[place] if place < len(self._arguments) else ""
        return self.variables.get(name)

    # --- tests ---

    def _tested(self, test: Test) -> bool | None:
        if not test.is_arithmetic:
            return self._test_words([*test.words])
        return self._holds([self._expanded(test.words[0])])

    def _test_words(self, words: list[str]) -> bool | None:  # noqa: PLR0911 - forms of a test
        """Return whether a test holds, None where an operand is not known."""
        if words and words[-1] == "]":
            words = words[:-1]
        for operators in (("||", "-o"), ("&&", "-a")):
            if (place := _last(words, operators)) is not None:
                left = self._test_words(words[:place])
                right = self._test_words(words[place + 1 :])
                decisive = operators[0] == "||"
                if decisive in (left, right):
                    return decisive
                return None if None in (left, right) else not decisive
        if words and words[0] == "!":
            status = self._test_words(words[1:])
            return None if status is None else not status
        if len(words) > 2 and words[0] == "(" and words[-1] == ")":
            return self._test_words(words[1:-1])
        operands = [self._expanded(word).replace(END_OF_ARRAY, "").strip() for word in words]
        if len(operands) == 1:
            return bool(operands[0]) if is_known(operands[0]) else None
        if len(operands) == 2 and operands[0] in ("-n", "-z") and is_known(operands[1]):
            return bool(operands[1]) == (operands[0] == "-n")
        if len(operands) == 3:
            return compared(*operands)
        return None


def _last(words: Sequence[str], operators: tuple[str, ...]) -> int | None:
    """Return the place of the last of some operators outside of parentheses."""
    depth = 0
    for place in range(len(words) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(words[place], 0)
        if not depth and words[place] in operators:
            return place
    return None


def compared(left: str, operator: str, right: str) -> bool | None:
    """Return whether a comparison of two words or numbers holds, None where it is not known."""
    if not (is_known(left) and is_known(right)):
        return None
    if operator in ("=", "==", "!="):
        return fnmatch.fnmatchcase(left, right) == (operator != "!=")
    if operator in _COMPARISONS and left.isdecimal() and right.isdecimal():
        return bool(_COMPARISONS[operator](int(left), int(right)))
    return None


def is_known(text: str) -> bool:
    """Return whether all variables of a text were filled in."""
    return "$" not in text and "`" not in text


def shortened(text: str) -> str:
    """Return the beginning of a text, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def collect(words: Sequence[str], found: dict[str, str | bool], name: str | None) -> str | None:
    """Add the options among words to those found, the last of repeated ones; return the option that
    waits for its value.

    A word in quotes may hold several. What follows ` #` on a line of such a word is a comment.
    """
    for written in words:
        for line in written.split("\n"):
            for word in line.split():
                if word == "#" or (word.startswith("#") and "\n" in written):
                    break
                key, equals, value = word.partition("=")
                if word == END_OF_ARRAY:
                    name = None
                elif word.startswith("--") and len(word) > 2:
                    name = key.replace("_", "-")
                    found[name] = value if equals else True
                elif name is not None and found[name] is True:
                    found[name] = word
                    name = name if name in SEVERAL_VALUES else None
                elif name in SEVERAL_VALUES and word.replace("+", "").isalnum():
                    found[name] = f"{found[name]} {word}"
                else:
                    name = None
    return name


def _acts(statements: Sequence[Statement]) -> bool:  # noqa: C901, PLR0911 - one for each kind
    """Return whether statements may set an option or a variable, or end the script."""
    for one in statements:
        match one:
            case Command():
                name = one.words[0] if one.words else ""
                if name not in NEVER_TRAIN - {"exit", "read", "return", "unset"}:
                    return True
            case If():
                inside = (
                    *one.otherwise,
                    *(each for pair in one.branches for each in sum(pair, ())),
                )
                if _acts(inside):
                    return True
            case Group():
                if _acts(one.body):
                    return True
            case Chain():
                if _acts([part for _, part in one.parts]):
                    return True
            case Test():
                if one.is_arithmetic and _CHANGES.search(one.words[0]):
                    return True
            case _:
                return True
    return False


def read_script(text: str) -> Script:
    """Return the options and variables of a bash script or of a file of arguments."""
    statements = _Parser(_Lexer(text).tokens()).script()
    paths: list[_Path] = []
    taken: list[int] = []
    work = [0]
    while True:
        path = _Path(_Choices(taken, work=work))
        path.follow(statements)
        paths.append(path)
        counts = path.choices.counts
        taken = path.choices.taken[: len(counts)]
        while counts and taken[-1] + 1 == counts[-1]:
            counts.pop()
            taken.pop()
        if not counts:
            break
        taken = [*taken[:-1], taken[-1] + 1]
        if len(paths) == MAX_PATHS:
            raise InvalidInput(
                f"the script's tests that are not known here open more than {MAX_PATHS} paths",
                hint="give the arguments of one run alone, as --name value",
            )
    if any(path.of_commands for path in paths):
        paths = [path for path in paths if path.of_commands]  # others end before they train
    return Script(
        options=_agreed(paths, [path.options for path in paths]),
        variables=_agreed(paths, [path.variables for path in paths]),
        uncomputed={key: why for path in paths for key, why in path.uncomputed.items()},
    )


def _agreed(
    paths: Sequence[_Path], of_paths: Sequence[Mapping[str, str | bool]]
) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name in dict.fromkeys(key for values in of_paths for key in values):
        first = of_paths[0].get(name)
        other = next((n for n, one in enumerate(of_paths) if one.get(name) != first), None)
        if other is None:
            found[name] = first if first is not None else ""
        else:
            found[name] = Undecided(_differing_test(paths, of_paths, name))
    return found


def _differing_test(
    paths: Sequence[_Path], of_paths: Sequence[Mapping[str, str | bool]], name: str
) -> str:
    """Return the tests that two paths with different values of a name took differently, fewest
    first.
    """
    differing: list[list[str]] = []
    first = paths[0]
    for path, values in zip(paths, of_paths, strict=True):
        if values.get(name) != of_paths[0].get(name):
            differing.append(
                [
                    test
                    for test, place in first.choices.tests.items()
                    if test in path.choices.tests
                    and path.choices.taken[path.choices.tests[test]] != first.choices.taken[place]
                ]
            )
    return " and ".join(sorted(differing, key=len)[0]) or "a test"
