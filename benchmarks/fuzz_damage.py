"""Bad inputs made of good ones: bytes damaged, words and numbers replaced by hostile ones, trees
grown and cut.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

WORD = re.compile(rb'"(?:[^"\\\n]|\\.)*"|[-+]?\d[\w.+-]*|[A-Za-z_][\w-]*')
"""What stands for a value or a key in all of the languages: a quoted text, a number, a name."""
NUMBERS = (
    "0", "-1", "1.5", "-0.0", "1e999", "-1e999", "NaN", "nan", "inf", "Infinity", "1e308", "5e-324",
    "2147483648",
    "9223372036854775808", "9" * 25, "9" * 400, "9" * 5000, "0x7f", "0b1", "1_000", "007", "1e",
    "٣", "2020-01-01",
)  # fmt: skip
NAMES = (
    "true", "false", "null", "yes", "~", "[]", "{}", '""', '" "', '"\\u0000"', '"\\ud800"',
    '"\\u202e"', '"\\n"',
    '"../../etc/passwd"', '"/dev/zero"', "'", '"', "`id`", "$(id)", "${HOME:-x}", "&a [*a]", "*a",
    "!!python/name:os",
    "<<: {}", "__proto__", "unknown_key", "--", "=", ",", "\\", "#", "<script>", "%s%n",
    "{0.__class__}",
)  # fmt: skip
PIECES = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\x80", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"\x1b[2J",
    "\u202e".encode(), "\u2028".encode(), "\x85".encode(), b"\r", b"\r\n", b"\n", b"\t", b'"', b"'",
    b"[", b"{", b"]",
    b"}", b",", b"=", b":", b"#", b"\\", b"-", b"e", b"1",
)  # fmt: skip
LARGE = 65_536
DEEP = (9, 40, 200, 1_000, 20_000)
DEEPEST = 1_000_000
FEW = 0.1
"""The share of long inputs among the kinds of damage that can make one: tens of thousands of
characters.
"""
RARE = 0.002
"""The share of inputs of a megabyte and more: they cost a thousand others."""


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content with one to four kinds of damage; a few inputs become very long or very deep."""
    if rng.random() < RARE:
        return rng.choice(LARGE_DAMAGE)(content, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        content = rng.choice(DAMAGE)(content, rng)
    return content


def _place(content: bytes, rng: random.Random) -> int:
    return rng.randrange(len(content) + 1)


def cut_short(content: bytes, rng: random.Random) -> bytes:
    return content[: _place(content, rng)]


def bits_flipped(content: bytes, rng: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(rng.choice((1, 2, 8)) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def piece_put_in(content: bytes, rng: random.Random) -> bytes:
    at = rng.choice((0, len(content), _place(content, rng)))
    return content[:at] + rng.choice(PIECES) * rng.choice((1, 1, 3)) + content[at:]


def slice_moved(content: bytes, rng: random.Random) -> bytes:
    begin, end = sorted((_place(content, rng), _place(content, rng)))
    end = min(end, begin + 400)
    at, rest = _place(content, rng), content[:begin] + content[end:]
    return rng.choice((rest, content[:at] + content[begin:end] + content[at:]))


def lines_shuffled(content: bytes, rng: random.Random) -> bytes:
    """A line left out, given twice, or two exchanged: duplicate and missing keys."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[one]
        case 1:
            lines.insert(other, lines[one])
        case _:
            lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def word_replaced(content: bytes, rng: random.Random) -> bytes:
    """A value or key that something hostile stands for, or another of the same file."""
    words = list(WORD.finditer(content))
    if not words:
        return content
    one = rng.choice(words)
    another = rng.choice(words)[0]
    new = rng.choice(
        (rng.choice(NUMBERS).encode(), rng.choice(NAMES).encode(), another, _quoted(rng))
    )
    return content[: one.start()] + new + content[one.end() :]


def _quoted(rng: random.Random) -> bytes:
    letter = rng.choice(("a", "\u202e", "é", "\\u0000", " ", "a.", "${A}", "0"))
    text = letter * rng.choice((1, 100, 5000))
    return rng.choice(('"{}"', "{}", "'{}'")).format(text).encode()


def nested(content: bytes, rng: random.Random, depth: int | None = None) -> bytes:
    words = list(WORD.finditer(content))
    at = rng.choice(words).end() if words else 0
    opened, closed = rng.choice(
        ((b"[", b"]"), (b'{"a":', b"}"), (b"{a = ", b"}"), (b"- ", b""), (b"(", b")"))
    )
    times = depth or rng.choice(DEEP)
    return content[:at] + opened * times + b"1" + closed * times + content[at:]


def other_encoding(content: bytes, rng: random.Random) -> bytes:
    encoding = rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-7", "cp037"))
    return content.decode("utf-8", errors="replace").encode(encoding, errors="replace")


def name_of_64_kb(content: bytes, rng: random.Random) -> bytes:
    words = list(WORD.finditer(content))
    if not words or rng.random() > 5 * FEW:
        return word_replaced(content, rng)
    one = rng.choice(words)
    long = rng.choice(("a", "\u202e", "0", " ", "a.b", "\t")) * LARGE
    return (
        content[: one.start()]
        + rng.choice(("{}", '"{}"')).format(long[:LARGE]).encode()
        + content[one.end() :]
    )


def lines_repeated(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    one = rng.randrange(len(lines))
    most = max(1, LARGE // max(1, len(lines[one]))) if rng.random() < FEW else 50
    return b"".join(lines[:one]) + lines[one] * rng.choice((3, most)) + b"".join(lines[one:])


def many_keys(content: bytes, rng: random.Random) -> bytes:
    """Thousands of keys that differ, and one of them twice, where a key may stand."""
    form = rng.choice(('"k{}": 1,', "k{} = 1\n", "k{}: 1\n", "k{},", "--k{} 1 ", "K{}=1\n"))
    keys = "".join(
        form.format(number) for number in [*range(5_000 if rng.random() < FEW else 50), 7]
    ).encode()
    at = rng.choice((0, 1, _place(content, rng)))
    return content[:at] + keys + content[at:]


def oversize(content: bytes, rng: random.Random) -> bytes:
    filler = rng.choice((b" ", b"\n", b"a", b"#", b"[", b",", b"\x00", b"1"))
    return content + filler * rng.choice((300_000, 1_100_000, 3_000_000))


def deepest(content: bytes, rng: random.Random) -> bytes:
    return nested(content, rng, DEEPEST)


def half_a_megabyte(content: bytes, rng: random.Random) -> bytes:
    """The content again and again, inside the limits of most readers."""
    return content * (rng.choice((200_000, 900_000)) // max(1, len(content)) + 1)


Damage = Callable[[bytes, random.Random], bytes]
DAMAGE: tuple[Damage, ...] = (
    cut_short, bits_flipped, piece_put_in, slice_moved, lines_shuffled, lines_shuffled,
    word_replaced, word_replaced,
    word_replaced, word_replaced, word_replaced, word_replaced, nested, other_encoding,
    name_of_64_kb, lines_repeated,
    many_keys,
)  # fmt: skip
LARGE_DAMAGE: tuple[Damage, ...] = (oversize, deepest, half_a_megabyte)

LEAVES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"),
    -float("inf"), 2**31, 2**53 + 1,
    2**63, 2**64, 10**400, "", " ", "a", "1", "nan", "\x00", "\u202e", "\ud800", "a" * 5000, "../x",
    [], {}, [1],
    [None], [[]], {"a": 1}, {"": {}}, [1, "a"], [0], [-1.0], [1e308, 1e308],
    "2020-01-01T00:00:00+00:00", "measured",
    "failed",
)  # fmt: skip


def tree_damaged(value: Any, rng: random.Random) -> Any:
    """A JSON value with one node of it replaced, taken out, doubled, or found elsewhere in it."""
    places = list(_places(value))
    if not places:
        return rng.choice(LEAVES)
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0 | 1:
            holder[key] = rng.choice(LEAVES)
        case 2:
            other, place = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[place]))
        case 3:
            del holder[key]
        case 4 if isinstance(holder, dict):
            holder[
                rng.choice(
                    ("unknown", "", "a" * 5000, "\u202e", "id", "__class__", *map(str, holder))
                )
            ] = 1
        case _ if isinstance(holder, list):
            holder.insert(key, rng.choice((holder[key], *LEAVES[:6])))
        case _:
            holder[key] = [holder[key]]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        items = (
            holder.items()
            if isinstance(holder, dict)
            else enumerate(holder)
            if isinstance(holder, list)
            else ()
        )
        for key, item in items:
            found.append((holder, key))
            waiting.append(item)
    return found
