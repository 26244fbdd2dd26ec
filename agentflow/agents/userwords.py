"""Userwords: where in a text the words stand that may be somebody's or something's name. Pure.

    parted("后天悉尼的太阳几点升起", ())  ->  "后天悉尼的太阳;升起"
    may_be("the weather in Rome")  ->  False

A small model that points at words points at wrong ones the oftener, the more there are. Chinese has no spaces: of 几点天黑 it
takes 点天, which is no word. So the words that only ask part the text, and, for a name, those by which the tool was found;
and what begins or ends with a function word is another's beginning or end. But characters of function words stand in names too:
what is left between two partings is taken whole as well (从化), and so are its first two characters (永和天气).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentflow.routing.terms import STOP_WORDS

_ASKS = re.compile(
    r"([\u4e00-\u9fff])不\1|什么时候|什么时间|什么|怎么样|怎么|怎样|如何|几点钟?|几时|几度|几个|多少|多大|多长|多久|多远|"
    r"哪里|哪儿|哪个|哪些|哪位|是谁|是否|现在|目前|有没有|请问|请你|麻烦|帮我|给我|告诉我|我想知道|我想|知不知道|知道|看看|看一下|查一下|一下|"
    r"这里|那里|那边|这边|那天(?!气)|小时|[吗呢](?=\W|$)"
)
_HEADS = frozenset("的了着过在是把被去从请我你您他她那")  # characters that no phrase worth taking begins with
_TAILS = frozenset("的了着在是把被要去从很得和与跟")
_BETWEEN = re.compile("[的在去到从和与跟得要]")  # what may part a stretch of Chinese, or stand in a name
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_HAN = re.compile(r"[\u4e00-\u9fff]")
_STRETCH = re.compile(r"[^\W_]*[\u4e00-\u9fff][^\W_]*")


def parted(text: str, aliases: Sequence[str]) -> str:
    """The text with a semicolon in the place of what only asks, and of a tool's aliases, the longer ones first."""
    if aliases:
        found = sorted({each for each in aliases if each.strip()}, key=len, reverse=True)
        words = "|".join(
            re.escape(each) if _HAN.search(each) else rf"(?<![^\W_]){re.escape(each)}(?![^\W_])" for each in found
        )
        text = re.sub(words, ";", text, flags=re.IGNORECASE) if words else text
    return _ASKS.sub(";", text)


def has_chinese(phrase: str) -> bool:
    """Whether a phrase has a Chinese character."""
    return _HAN.search(phrase) is not None


def whole(text: str) -> list[str]:
    """The stretches of Chinese in a text, and the first two characters of one where the second could be a function word.

    No single characters, none of function words alone, and no 的 at an end, which is no name's.
    """
    found = []
    for each in _STRETCH.findall(text):
        stretch = each.strip("的")
        found.append(stretch)
        if len(stretch) > 2 and stretch[1] in _TAILS:
            found.append(stretch[:2])
    return [each for each in dict.fromkeys(found) if len(each) > 1 and not set(each) <= _HEADS | _TAILS]


def stretches(text: str) -> list[str]:
    """Those, without function characters at their ends, and what is between such in them; no single characters."""
    found = whole(text)
    for stretch in _STRETCH.findall(text):
        found += [stretch.lstrip("".join(_HEADS)).rstrip("".join(_TAILS)), *_BETWEEN.split(stretch)]
    return [each for each in dict.fromkeys(found) if len(each) > 1]


def may_be(phrase: str, text: str) -> bool:
    """Whether words of a text neither begin nor end with a function word.

    One in capitals is none, unless it begins the text: The Hague, IT. There it may be a name's before another such: Will Smith.
    """
    if phrase[0] in _HEADS or phrase[-1] in _TAILS or phrase in ("The", "A", "An"):
        return False
    words = _WORD.findall(phrase)
    if not words:
        return True
    first, last = words[0], words[-1]
    begins = text.lstrip().startswith(phrase) and not (len(words) > 1 and words[1] != "I" and words[1][0].isupper())
    return not (_is_stop(first, begins=begins) or _is_stop(last, begins=begins and len(words) == 1))


def _is_stop(word: str, *, begins: bool) -> bool:
    return word.replace("\u2019", "'").casefold() in STOP_WORDS and (begins or word[0].islower() or word == "I")
