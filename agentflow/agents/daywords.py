"""Daywords: the words of a text that name a day, a part of a year or a moment of today, as they are written there. Pure.

    days("When does the sun rise in Athens the day after tomorrow?")  ->  ["the day after tomorrow"]

English and Chinese. They are found, and not understood: what day they mean is for whoever reads them.
"""

from __future__ import annotations

import re

MAX_DAYS = 16  # of one text
MAX_CHARS = 4000  # of a text that is read

_WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)days?"
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)"
)
_WHOLE_MONTH = r"(?:january|february|march|april|june|july|august|september|october|november|december)"
_MAY = r"(?:(?<=in )|(?<=this )|(?<=next )|(?<=of )|(?<=on ))may"  # a month, and not that something may be
_FIGURE = r"\d{1,2}(?:st|nd|rd|th)?"
_YEAR = r"(?:,? \d{4})?"
_ENGLISH = (
    r"(?:the )?day (?:after tomorrow|before yesterday)",
    r"(?:today|tomorrow|yesterday)(?: (?:morning|afternoon|evening|night))?",
    r"tonight|right now|now|this (?:morning|afternoon|evening)",
    r"\d{4}-\d{1,2}-\d{1,2}",
    rf"(?:the )?{_FIGURE} (?:of )?(?:{_MONTH}|may){_YEAR}",
    rf"(?:{_MONTH}|may) (?:the )?{_FIGURE}{_YEAR}",
    rf"(?:(?:early|late|next|this) )?(?:{_WHOLE_MONTH}|{_MAY})(?: \d{{4}})?",
    rf"(?:(?:this|next|last|coming) )?(?:{_WEEKDAY}|weekend)",
    r"(?:this|next|last) (?:week|month|year|spring|summer|autumn|fall|winter)",
    r"in (?:a|\d{1,3}|two|three|four|five|six|seven) (?:days?|weeks?|months?)(?: time)?",
    r"(?:summer|winter) solstice|easter|christmas(?: eve| day)?|new year(?:'?s)?(?: eve| day)?",
)
_FIGURES = r"(?:\d{1,2}|[一二三四五六七八九十廿]{1,3})"
_PART = r"(?:早上|上午|中午|下午|傍晚|晚上|夜里)"  # of a day
_CHINESE = (
    rf"(?:大?[前后]天|[今明昨][天日]){_PART}?|[今明昨][晚早夜]|现在",
    rf"(?:(?:\d{{4}}|[今明后]|[二〇零一二三四五六七八九]{{4}})年)?{_FIGURES}月份?(?:{_FIGURES}[日号]?)?{_PART}?",
    rf"(?:[本这下上]个?月)?{_FIGURES}号(?![线楼门店院馆厅路街航])",
    r"(?:\d{1,3}|[一二两三四五六七八九十]{1,3})(?:天|个?星期|周|个?礼拜|个月)(?:之后|以后|后)",
    rf"(?:[本这]个?|[下上]{{1,2}}个?)?(?:周|星期|礼拜)[一二三四五六日天末]{_PART}?",
    r"[下上本这]个?(?:周|星期|礼拜|月)|[今明去]年",
    r"夏至|冬至|春分|秋分|春节|中秋节?|国庆节?|元旦|劳动节|平安夜|圣诞(?:节|夜)?|除夕|[春夏秋冬]天",
)
_DAY = re.compile(rf"\b(?:{'|'.join(_ENGLISH)})\b|{'|'.join(_CHINESE)}", re.IGNORECASE | re.ASCII)


def undated(text: str) -> str:
    """The text with a semicolon in the place of what names a day. A long text stays as it is."""
    return text if len(text) > MAX_CHARS else _DAY.sub(";", text)


def days(text: str) -> list[str]:
    """What of a text names a day, in its order; MAX_DAYS at most. Nothing for a long text."""
    if len(text) > MAX_CHARS:
        return []
    return list(dict.fromkeys(found[0] for found in _DAY.finditer(text)))[:MAX_DAYS]
