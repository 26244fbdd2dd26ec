"""Terms: what is compared of a text. Pure, and bounded however long the text is.

**Units.** The text is cut to its head and its tail, brought to one form (NFKC, lower case) and read as units: words, numbers
(all of them `#`), symbols of money and arithmetic, and each character of a script that puts no space between words (Chinese,
Japanese, Korean). English plurals lose their s (Harman's S stemmer, 1991), and long words their -ing.

**Terms.** Words that are not stop words; symbols; each two adjacent characters of Chinese, which need no dictionary of words
and find them as well (Nie and Ren, "Chinese information retrieval: using characters or words?", 1999); and `#sum` for figures
with an operator between them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

Script = Literal["cjk", "spaced"]

HEAD_CHARS = 1500  # people say what they want first, or below what they pasted
TAIL_CHARS = 500
EMBEDDED_HEAD_CHARS = 160  # some 60 English tokens together: an encoder takes longer for more, and means less
EMBEDDED_TAIL_CHARS = 80
NUMBER = "#"
SUM = "#sum"

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0002fa1f"
_UNIT = re.compile(rf"[{_CJK}]|\d[\d.,]*|[^\W\d_{_CJK}]+(?:'[a-z]+)?|[*/^%+°√$€£¥₩₹฿₽₺]")
_SUM = re.compile(r"\d\s*(?:[*/^+\u00d7\u00f7-])\s*\(?\s*\d|√")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}")
_CHARACTER = re.compile(rf"[{_CJK}]")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# Function words, and the words of politeness; what people ask with (when, how) says too little of what they want.
_STOP_WORDS = """
a about actually afternoon again all also am an and any are as at be been before being but by can can't could couldn't day
days did do does doesn't don't down evening for from get give go going good got had has have he her here hi him his how
how's i i'd i'll i'm i've if in into is isn't it it's its just know let like long many me mine more morning much must my
need no not now of off ok on one or our out over please pls really right say she should show so some sorry such tell than
thank that that's the their them then there these they this those to today tomorrow tonight too up us very want was way we
we'd well were what what's whats when when's where which who whom will with would wouldn't yes you your yours
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Phrases that ask as `when` does, unless an alias goes further: what time is it.
STOP_PHRASES = frozenset({("what", "time"), ("what", "hour")})
# The same of Chinese, in pairs of characters.
_STOP_PAIRS = "什么 怎么 多少 是多 少是 一个 一下 我的 你的 这个 那个 现在 可以 请问 帮我 给我 我想"
STOP_PAIRS = frozenset(_STOP_PAIRS.split())
# The characters of Chinese courtesies and requests: 请问, 麻烦您帮我, 能不能, 我想知道, 给我.
COURTESY_CHARACTERS = frozenset("请问麻烦您你帮忙我能不可以想要知道给一下吗那")


def excerpt(text: str) -> str:
    """The head and the tail of a long text: all that is read of it."""
    return _ends(text, HEAD_CHARS, TAIL_CHARS)


def embedded(text: str) -> str:
    """The head and the tail of a text that is not quite short: all that is worth embedding."""
    return _ends(text, EMBEDDED_HEAD_CHARS, EMBEDDED_TAIL_CHARS)


def units(text: str) -> list[str]:
    """The text's units, in order."""
    normal = unicodedata.normalize("NFKC", excerpt(text)).replace("\u2019", "'").lower()
    return [_unit(found) for found in _UNIT.findall(excerpt(normal))]  # cut again: NFKC may lengthen a text 18-fold


def term_at(found: Sequence[str], at: int) -> str | None:
    """The term that begins with the unit at this place: a word, or two characters. None where there is none."""
    if not is_character(found[at]):
        return None if found[at] in STOP_WORDS or found[at] == NUMBER else found[at]
    if at + 1 == len(found) or not is_character(found[at + 1]) or (pair := found[at] + found[at + 1]) in STOP_PAIRS:
        return None
    return pair


def terms(text: str) -> set[str]:
    """The terms of a text."""
    found = units(text)
    result = {term for at in range(len(found)) if (term := term_at(found, at)) is not None}
    return result | {SUM} if has_sum(text) else result


def has_sum(text: str) -> bool:
    """Whether the text has figures with an operator between them."""
    return _SUM.search(_DATE.sub(" ", excerpt(text))) is not None


def opening_of(found: list[str]) -> int:
    """Where the request begins: the first unit that is neither a stop word nor of a courtesy; 0 if all are."""
    return next((at for at, unit in enumerate(found) if unit not in STOP_WORDS and unit not in COURTESY_CHARACTERS), 0)


def script_of(text: str) -> Script:
    """Whether the text is Chinese and the like: such characters say more each, so that a third of the letters is enough."""
    letters = sum(map(str.isalpha, text))
    return "cjk" if letters and 3 * len(_CHARACTER.findall(text)) >= letters else "spaced"


def is_character(unit: str) -> bool:
    """Whether the unit is a character of a script without spaces."""
    return len(unit) == 1 and _CHARACTER.match(unit) is not None


def spoken(name: str) -> str:
    """An identifier as words: `convert_currency`, `convertCurrency`."""
    return _HUMP.sub(" ", name).replace("_", " ")


def _ends(text: str, head: int, tail: int) -> str:
    return text if len(text) <= head + tail else f"{text[:head]} {text[-tail:]}"


def _unit(unit: str) -> str:
    if unit[0].isdecimal():
        return NUMBER
    if len(unit) > 6 and unit.endswith("ing"):
        return unit[:-3]
    if (
        len(unit) < 4 or not unit.endswith("s") or unit in STOP_WORDS or unit == "times"
    ):  # 3 times 4 is no matter of time
        return unit
    unit = unit.removesuffix("'s")
    if unit.endswith("ies") and not unit.endswith(("eies", "aies")):
        return unit[:-3] + "y"
    if unit.endswith(("ches", "shes", "xes", "sses")):
        return unit[:-2]
    if unit.endswith(("us", "ss", "is")):
        return unit
    return unit.removesuffix("s")
