"""Tools of a travel desk that works offline: weather as it usually is, sun, time, money, units.

The tables lie beside this file, and each says how exact it is. The sun's times are computed. A small model fills in the
arguments, so that much is understood: English and Chinese names, spellings, `tomorrow` and 明天. Each answer is a sentence,
in Chinese where the place or the unit was written so, which a small model can pass on as it stands. What is not in a table,
and a day or an amount that cannot be read, is answered by a sentence too, and not by an error: after an error an agent's
large model tries by itself, and a small one invents.
"""

# ruff: noqa: RUF001 - Chinese has its own punctuation
from __future__ import annotations

from datetime import datetime
from typing import Annotated

from days import chinese_day, day_of, english_day, unread
from measures import RATES_OF, RATES_OF_CHINESE, converted, currencies, read_request, units
from measures import unread as unread_amount
from msgspec import Meta
from places import city_of, has_chinese, normals, today_in, unknown_city
from sunlight import sun

from agentflow.tools.function import tool

# A small model points at the user's words, and does not spell them.
CityName = Annotated[str, Meta(extra_json_schema={"x-from-user": "name"})]
DayName = Annotated[str, Meta(extra_json_schema={"x-from-user": "day"})]
Request = Annotated[str, Meta(extra_json_schema={"x-from-user": "message"})]


@tool(
    idempotent=True,
    timeout_s=5,
    examples=(
        "What's the weather in Berlin on Friday?",
        "Will it rain in Lisbon tomorrow?",
        "How cold does Moscow get in January?",
        "Do I need an umbrella in London this weekend?",
        "How warm is it in Athens right now?",
        "What's it like in Rome in March?",
        "北京今天天气怎么样？",
        "明天广州会下雨吗？",
        "去哈尔滨要穿羽绒服吗？",
        "成都后天多少度？",
    ),
    aliases=(
        *("weather", "forecast", "climate", "temperature", "rain", "rainy", "snow", "umbrella", "hot", "cold", "warm"),
        *("freezing", "sunny", "windy", "humid", "jacket", "天气", "气温", "温度", "下雨", "下雪", "带伞", "雨伞"),
        *(
            "多少度",
            "冷不冷",
            "热不热",
            "冷吗",
            "热吗",
            "穿什么",
            "穿多",
            "多厚",
            "暖和",
            "羽绒服",
            "短袖",
            "外套",
            "湿度",
            "潮湿",
        ),
        *("raincoat", "coat", "chilly", "shorts"),
    ),
)
def weather(city: CityName, day: DayName = "today") -> str:
    """The usual weather in a city on a day.

    Args:
        city: The name of the city, as the user writes it.
        day: tomorrow, or another day, as the user says it.
    """
    place = city_of(city)
    if place is None:
        return unknown_city(city)
    when = day_of(day, today_in(place))
    if when is None:
        return unread(day, chinese=has_chinese(city))
    normal = normals()[place.name][when.month - 1]
    if has_chinese(city):
        return (
            f"{place.chinese}{chinese_day(when)}：通常白天{normal.high}℃，夜间{normal.low}℃，"
            f"{when.month}月降水约{normal.rain}毫米。这是气候平均值，不是预报。"
        )
    return (
        f"{place.name}, {english_day(when)}: usually {normal.high} °C by day and {normal.low} °C at night, "
        f"about {normal.rain} mm of rain in {when:%B}. This is the usual climate, not a forecast."
    )


@tool(
    idempotent=True,
    timeout_s=5,
    examples=(
        "When does the sun rise in Athens tomorrow?",
        "Sunset time in Reykjavik on 21 June",
        "How long is the day in Stockholm in December?",
        "When will it get dark in Paris tonight?",
        "上海明天几点日出？",
        "今天广州什么时候天黑？",
        "冬至那天北京白天有多长？",
    ),
    aliases=(
        *("sunrise", "sunset", "daylight", "dusk", "dawn", "the sun", "sun rise", "sun set", "get dark", "get light"),
        *("be dark", "day length", "length of the day", "nightfall", "日出", "日落", "天黑", "天亮", "太阳", "黎明"),
        *(
            "黄昏",
            "白天多长",
            "白天有多",
            "升起",
            "落山",
            "下山",
            "日照",
            "night fall",
            "sun go down",
            "sun come up",
            "hours of light",
        ),
    ),
)
def sun_times(city: CityName, day: DayName = "today") -> str:
    """Sunrise, sunset and the length of the day in a city.

    Args:
        city: The name of the city, as the user writes it.
        day: tomorrow, or another day, as the user says it.
    """
    place = city_of(city)
    if place is None:
        return unknown_city(city)
    when = day_of(day, today_in(place))
    if when is None:
        return unread(day, chinese=has_chinese(city))
    times = sun(place.latitude, place.longitude, when)
    if times is None:
        return f"In {place.name} the sun does not both rise and set on {english_day(when)}."
    rise, down = (moment.astimezone(place.zone) for moment in times)
    hours, minutes = divmod(round((times[1] - times[0]).total_seconds() / 60), 60)
    if has_chinese(city):
        return f"{place.chinese}{chinese_day(when)}：日出{rise:%H:%M}，日落{down:%H:%M}，白天{hours}小时{minutes}分。"
    return (
        f"{place.name}, {english_day(when)}: the sun rises at {rise:%H:%M} and sets at {down:%H:%M} local time; "
        f"the day is {hours} h {minutes} min long."
    )


@tool(
    idempotent=True,
    timeout_s=5,
    examples=(
        "What time is it in Tokyo?",
        "Current time in New York",
        "Is it already morning in Los Angeles?",
        "What day of the week is it in Sydney?",
        "现在纽约几点了？",
        "巴黎现在是什么时间？",
        "莫斯科现在几点钟？",
        "北京现在几点？",
        "现在悉尼几点？",
        "伦敦今天星期几？",
    ),
    aliases=(
        *("what time is it", "current time", "local time", "time zone", "the time in", "what's the time", "time is it"),
        *(
            "o'clock",
            "几点了",
            "现在几点",
            "是几点",
            "几点啦",
            "时区",
            "几点钟",
            "星期几",
            "几月几号",
            "day of the week",
            "北京时间",
            "当地时间",
            "现在时间",
            "当前时间",
            "什么时间",
        ),
    ),
)
def city_time(city: CityName) -> str:
    """The date and time now in a city.

    Args:
        city: The name of the city, as the user writes it.
    """
    place = city_of(city)
    if place is None:
        return unknown_city(city)
    now = datetime.now(place.zone)
    offset = f"UTC{now:%z}"
    if has_chinese(city):
        return f"{place.chinese}现在是{now:%H:%M}，{chinese_day(now.date())}（{offset}）。"
    return f"In {place.name} it is {now:%H:%M} on {english_day(now.date())} ({offset})."


@tool(
    idempotent=True,
    timeout_s=5,
    examples=(
        "Convert 250 dollars to pounds",
        "How much is 40 EUR in yen?",
        "What's the exchange rate of the franc to the dollar?",
        "500 USD in CNY",
        "300美元等于多少人民币？",
        "把2000日元换成港币",
        "欧元兑英镑的汇率是多少？",
    ),
    aliases=(
        *(
            "currency",
            "exchange rate",
            "exchange",
            "dollars",
            "euros",
            "pounds sterling",
            "british pounds",
            "yen",
            "yuan",
        ),
        *("usd", "eur", "gbp", "cny", "jpy", "chf", "francs", "rupees", "pesos", "won", "baht", "kroner", "kronor"),
        *("lira", "€", "$", "£", "¥", "汇率", "美元", "美金", "欧元", "人民币", "日元", "英镑", "兑换", "港币", "韩元"),
        *("泰铢", "卢布", "折合", "加元", "澳元", "法郎", "卢比", "换钱"),
    ),
)
def convert_currency(request: Request) -> str:
    """Convert an amount of money from one currency to another.

    Args:
        request: The amount and both currencies, as the user says it, such as 40 euros in yen.
    """
    try:
        asked = read_request(request, currencies())
    except (ValueError, OverflowError):
        return unread_amount(request)
    if asked is None:
        if has_chinese(request):
            return "请说出金额和两种货币，例如：300美元等于多少人民币。"
        return "Name an amount and two currencies that I know, such as 40 euros in yen."
    worth = asked.value / currencies()[asked.source].per_dollar * currencies()[asked.target].per_dollar
    source, target = currencies()[asked.source].code, currencies()[asked.target].code
    if has_chinese(request):
        return f"{asked.value:,.15g} {source} 约合 {worth:,.2f} {target}（{RATES_OF_CHINESE}的大致汇率）。"
    return f"{asked.value:,.15g} {source} is about {worth:,.2f} {target} (rounded rates of {RATES_OF})."


@tool(
    idempotent=True,
    timeout_s=5,
    examples=(
        "How many kilometres are 26 miles?",
        "Convert 180 pounds to kilograms",
        "What is 98 Fahrenheit in Celsius?",
        "60 mph in km/h",
        "How many litres in a gallon?",
        "10英里等于多少公里？",
        "把华氏90度换成摄氏度",
        "5磅是多少公斤？",
    ),
    aliases=(
        *("unit", "units", "kilometres", "kilometers", "miles", "feet", "inches", "yards", "metres", "meters", "cm"),
        *("mm", "km", "kg", "lb", "oz", "ml", "kilograms", "kilos", "grams", "pounds", "ounces", "litres", "liters"),
        *(
            "gallons",
            "cups",
            "celsius",
            "fahrenheit",
            "°",
            "mph",
            "km/h",
            "knots",
            "acres",
            "hectares",
            "square metres",
        ),
        *(
            "英里",
            "公里",
            "公斤",
            "英尺",
            "英寸",
            "摄氏",
            "华氏",
            "加仑",
            "换算",
            "厘米",
            "千克",
            "磅",
            "盎司",
            "平方米",
        ),
        *(
            "c in f",
            "f in c",
            "c to f",
            "f to c",
            "海里",
            "毫米",
            "摄氏度",
            "华氏度",
            "degrees celsius",
            "degrees fahrenheit",
        ),
    ),
)
def convert_units(request: Request) -> str:
    """Convert a quantity between units of length, weight, volume, area, speed or temperature.

    Args:
        request: The number and both units, as the user says it, such as 26 miles in kilometres.
    """
    try:
        asked = read_request(request, units())
    except (ValueError, OverflowError):
        return unread_amount(request)
    if asked is None:
        if has_chinese(request):
            return "请说出数值和两个单位，例如：10英里等于多少公里。"
        return "Name a number and two units that I know, such as 26 miles in kilometres."
    source, target = units()[asked.source], units()[asked.target]
    if source.kind != target.kind:
        return f"{source.symbol} is a unit of {source.kind}, and {target.symbol} one of {target.kind}."
    found = f"{converted(asked.value, source, target):,.6g} {target.symbol}"
    if has_chinese(request):
        return f"{asked.value:,.15g} {source.symbol} 等于 {found}。"
    return f"{asked.value:,.15g} {source.symbol} is {found}."
