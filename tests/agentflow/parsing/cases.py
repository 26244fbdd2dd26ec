"""Answers in each format, and what is understood of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agentflow.parsing.events import CallArguments, CallClosed, CallOpened, Malformed, ParserEvent, Text, ToolParser
from agentflow.parsing.forced import ListParser, NamedParser
from agentflow.parsing.formats import FORMATS
from agentflow.parsing.marked import MarkedParser

NAMES = frozenset({"f", "get_weather"})
TRICKY = r'{"s": "br{ace} \"quoted\\\" [x] \u00e9\ud83e\udd86 </tool_call> ;", "n": [1, {"m": null}], "é": "日本"}'

Case = tuple[str, list[ParserEvent]]


def marked(form: str) -> ToolParser:
    """A parser of this format."""
    return MarkedParser(FORMATS[form], NAMES)  # type: ignore[index]  # a key is a literal


def named() -> ToolParser:
    """A parser of the arguments of `f`."""
    return NamedParser("f")


def call(index: int, name: str, arguments: str) -> list[ParserEvent]:
    """The events of a whole call."""
    return [CallOpened(index, name), CallArguments(index, arguments), CallClosed(index)]


def parsed(parser: ToolParser, pieces: Iterable[str]) -> list[ParserEvent]:
    """The events, with neighbouring pieces of text, or of one call's arguments, joined."""
    events: list[ParserEvent] = []
    for event in [event for piece in pieces for event in parser.feed(piece)] + parser.finish():
        last = events[-1] if events else None
        if isinstance(event, Text) and isinstance(last, Text):
            events[-1] = Text(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and event.index == last.index:
            events[-1] = CallArguments(event.index, last.text + event.text)
        else:
            events.append(event)
    return events


HERMES: dict[str, Case] = {
    "plain text": ("Hello, world.", [Text("Hello, world.")]),
    "no text": ("", []),
    "white space alone": (" \n", [Text(" \n")]),
    "one call": (
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        call(0, "f", '{"a": 1}'),
    ),
    "text, then a call": (
        'Let me look.\n<tool_call>{"name":"f","arguments":{}}</tool_call>',
        [Text("Let me look.\n"), *call(0, "f", "{}")],
    ),
    "white space, then a call": ('\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>', call(0, "f", "{}")),
    "two calls": (
        (
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get_weather", "arguments": {"b": "x"}}\n</tool_call>\n'
        ),
        [*call(0, "f", '{"a": 1}'), *call(1, "get_weather", '{"b": "x"}')],
    ),
    "a call, then text": (
        '<tool_call>{"name":"f","arguments":{}}</tool_call>\n Done.',
        [*call(0, "f", "{}"), Text("\n Done.")],
    ),
    "arguments before the name": (
        f'<tool_call>{{"arguments": {TRICKY}, "name": "f"}}</tool_call>',
        call(0, "f", TRICKY),
    ),
    "braces, escapes and markers in strings": (
        f'<tool_call>{{"name": "f", "arguments": {TRICKY}}}</tool_call>',
        call(0, "f", TRICKY),
    ),
    "spacing is kept byte for byte": (
        '<tool_call>{ "name" :\t"f" , "arguments" : { "a" :\n1 ,"b":[ ] } }</tool_call>',
        call(0, "f", '{ "a" :\n1 ,"b":[ ] }'),
    ),
    "keys of no interest": (
        '<tool_call>{"type": "function", "id": 12, "x": {"name": "g"}, "name": "f", "arguments": {}}</tool_call>',
        call(0, "f", "{}"),
    ),
    "an escaped name": (r'<tool_call>{"n\u0061me": "\u0066", "arguments": {}}</tool_call>', call(0, "f", "{}")),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', call(0, "f", "{}")),
    "arguments that are a number": (
        '<tool_call>{"name": "f", "arguments": -1.5e3}</tool_call>',
        call(0, "f", "-1.5e3"),
    ),
    "arguments that are a string": (
        r'<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>',
        call(0, "f", r'"{\"a\": 1}"'),
    ),
    "parameters for arguments": (
        '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>',
        call(0, "f", '{"a": 1}'),
    ),
    "no closer at the end": ('<tool_call>{"name": "f", "arguments": {}}\n</tool_', call(0, "f", "{}")),
    "no closer before text": (
        '<tool_call>{"name": "f", "arguments": {}} and',
        [*call(0, "f", "{}"), Text(" and")],
    ),
    "what only begins like a marker": ("a <tool_cal> b <tool_", [Text("a <tool_cal> b <tool_")]),
    "a marker after its own beginning": (
        '<tool_<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        [Text("<tool_"), *call(0, "f", "{}")],
    ),
    "a closer alone": ("</tool_call>", [Text("</tool_call>")]),
    "unfinished before the name": ('x<tool_call>{"na', [Text("x"), Malformed('<tool_call>{"na')]),
    "unfinished in the arguments": (
        '<tool_call>{"name": "f", "arguments": {"a": "b',
        [
            CallOpened(0, "f"),
            CallArguments(0, '{"a": "b'),
            Malformed('<tool_call>{"name": "f", "arguments": {"a": "b', 0),
        ],
    ),
    "unfinished after the arguments": (
        '<tool_call>{"name": "f", "arguments": {}',
        [CallOpened(0, "f"), CallArguments(0, "{}"), Malformed('<tool_call>{"name": "f", "arguments": {}', 0)],
    ),
    "an opener alone": ("<tool_call>", [Malformed("<tool_call>")]),
    "no JSON, then a good call": (
        '<tool_call>f(1)</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>',
        [Malformed("<tool_call>f(1)</tool_call>"), *call(0, "f", "{}")],
    ),
    "no name": (
        '<tool_call>{"arguments": {}}</tool_call>!',
        [Malformed('<tool_call>{"arguments": {}}</tool_call>'), Text("!")],
    ),
    "a name that is a number": (
        '<tool_call>{"name": 5}</tool_call>',
        [Malformed('<tool_call>{"name": 5}</tool_call>')],
    ),
    "a name that is half a character": (
        r'<tool_call>{"name": "\ud800"}</tool_call>',
        [Malformed(r'<tool_call>{"name": "\ud800"}</tool_call>')],
    ),
    "brackets that do not match": (
        '<tool_call>{"name": "f", "arguments": {"a": ]}}</tool_call>',
        [
            CallOpened(0, "f"),
            CallArguments(0, '{"a": '),
            Malformed('<tool_call>{"name": "f", "arguments": {"a": ]}}</tool_call>', 0),
        ],
    ),
    "arguments twice": (
        '<tool_call>{"name": "f", "arguments": {}, "arguments": {}}</tool_call>',
        [
            CallOpened(0, "f"),
            CallArguments(0, "{}"),
            Malformed('<tool_call>{"name": "f", "arguments": {}, "arguments": {}}</tool_call>', 0),
        ],
    ),
    "a failed call keeps its number": (
        '<tool_call>{"name": "f", "arguments": [}</tool_call><tool_call>{"name": "f"}</tool_call>',
        [
            CallOpened(0, "f"),
            CallArguments(0, "["),
            Malformed('<tool_call>{"name": "f", "arguments": [}</tool_call>', 0),
            *call(1, "f", "{}"),
        ],
    ),
}

LLAMA3: dict[str, Case] = {
    "a bare call": ('{"name": "f", "parameters": {"a": 1}}', call(0, "f", '{"a": 1}')),
    "after the tag": ('<|python_tag|>{"name": "g", "parameters": {}}', call(0, "g", "{}")),
    "two calls": (
        '{"name": "f", "parameters": {"a": ";"}}; {"parameters": {}, "name": "get_weather"}',
        [*call(0, "f", '{"a": ";"}'), *call(1, "get_weather", "{}")],
    ),
    "another function": (
        '{"name": "Bob", "parameters": {}}',
        [Text('{"name": "Bob", "parameters": {}}')],
    ),
    "an object that is no call": (' {"name": "f", "age": 3} ok', [Text(' {"name": "f", "age": 3} ok')]),
    "an object in text": (
        'So: {"name": "f", "parameters": {}}',
        [Text('So: {"name": "f", "parameters": {}}')],
    ),
    "an unfinished object": ('{"name": "f", "par', [Text('{"name": "f", "par')]),
    "text after a call": ('{"name": "f", "parameters": {}} ; so', [*call(0, "f", "{}"), Text(" ; so")]),
    "code after the tag": ("<|python_tag|>print(1)", [Malformed("<|python_tag|>print(1)")]),
    "a failed call": (
        '{"name": "f", "parameters": {]} x',
        [CallOpened(0, "f"), CallArguments(0, "{"), Malformed('{"name": "f", "parameters": {]} x', 0)],
    ),
}

HERMES_STRICT: dict[str, Case] = {
    "arguments that only look like JSON": (
        '<tool_call>{"name": "f", "arguments": {"a" 1}}</tool_call>',
        [
            CallOpened(0, "f"),
            CallArguments(0, '{"a" '),
            Malformed('<tool_call>{"name": "f", "arguments": {"a" 1}}</tool_call>', 0),
        ],
    ),
}

MISTRAL: dict[str, Case] = {
    "an array": ('[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', call(0, "f", '{"a": 1}')),
    "an array of two, with ids": (
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": "]"}, "id": "123456789"},\n{"arguments": {}, "name": "g"}]',
        [*call(0, "f", '{"a": "]"}'), *call(1, "g", "{}")],
    ),
    "an object": ('[TOOL_CALLS]{"name": "f", "arguments": {}}', call(0, "f", "{}")),
    "a name and braces": (f"[TOOL_CALLS]f{TRICKY}", call(0, "f", TRICKY)),
    "a name, a mark and braces": ('[TOOL_CALLS]f[ARGS]{"a": 1}', call(0, "f", '{"a": 1}')),
    "an id as well": ('[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"a": 1}', call(0, "f", '{"a": 1}')),
    "space between the parts": ('[TOOL_CALLS] f [ARGS] {"a": 1}', call(0, "f", '{"a": 1}')),
    "several markers": (
        'On it.\n[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get_weather{} [TOOL_CALLS] [{"name": "h"}]',
        [Text("On it.\n"), *call(0, "f", '{"a": 1}'), *call(1, "get_weather", "{}"), *call(2, "h", "{}")],
    ),
    "text after a call": ("[TOOL_CALLS]f{} so", [*call(0, "f", "{}"), Text(" so")]),
    "an array that lacks its end": ('[TOOL_CALLS] [{"name": "f"}', call(0, "f", "{}")),
    "an array that lacks its end, before text": ('[TOOL_CALLS] [{"name": "f"} so', [*call(0, "f", "{}"), Text("so")]),
    "an array cut in the second call": (
        '[TOOL_CALLS] [{"name": "f"}, {"name": "g", "arguments": {"a": [',
        [
            *call(0, "f", "{}"),
            CallOpened(1, "g"),
            CallArguments(1, '{"a": ['),
            Malformed(', {"name": "g", "arguments": {"a": [', 1),
        ],
    ),
    "an array of something else": ("[TOOL_CALLS] [1]", [Malformed("[TOOL_CALLS] [1]")]),
    "an empty array": ("[TOOL_CALLS] []", [Malformed("[TOOL_CALLS] []")]),
    "the marker alone": ("x [TOOL_CALLS]", [Text("x "), Malformed("[TOOL_CALLS]")]),
    "text after the marker": ("[TOOL_CALLS] Hello world", [Malformed("[TOOL_CALLS] Hello world")]),
    "a name alone": ("[TOOL_CALLS]f[ARGS]", [Malformed("[TOOL_CALLS]f[ARGS]")]),
    "a call after one that cannot be understood": (
        '[TOOL_CALLS]f[AR[TOOL_CALLS]f[TOOL_CALLS]g{"a": x}[TOOL_CALLS]h{}',
        [
            Malformed("[TOOL_CALLS]f[AR"),
            Malformed("[TOOL_CALLS]f"),
            CallOpened(0, "g"),
            CallArguments(0, '{"a": '),
            Malformed('[TOOL_CALLS]g{"a": x}', 0),
            *call(1, "h", "{}"),
        ],
    ),
    "what only begins like the marker": ("[TOOL_CALL] [TOOL", [Text("[TOOL_CALL] [TOOL")]),
    "cut in the arguments": (
        '[TOOL_CALLS]f{"a": "}',
        [CallOpened(0, "f"), CallArguments(0, '{"a": "}'), Malformed('[TOOL_CALLS]f{"a": "}', 0)],
    ),
}

PYTHONIC: dict[str, Case] = {
    "one call": ('[f(city="SF", days=3)]', call(0, "f", '{"city": "SF", "days": 3}')),
    "two calls": (
        '[get_weather(city="SF", days=3),\n f(x=[1, {"a": None}], flag=True)]',
        [*call(0, "get_weather", '{"city": "SF", "days": 3}'), *call(1, "f", '{"x": [1, {"a": null}], "flag": true}')],
    ),
    "no arguments": (" [f( )] ", call(0, "f", "{}")),
    "between markers": (
        "Now. <|python_start|>[g(a=1)]<|python_end|> Done.",
        [Text("Now. "), *call(0, "g", '{"a": 1}'), Text(" Done.")],
    ),
    "two lists between markers": (
        "<|python_start|>[f()]\n[f(a=1)]<|python_end|>",
        [*call(0, "f", "{}"), *call(1, "f", '{"a": 1}')],
    ),
    "a list that lacks its end, before the marker": (
        "<|python_start|>[g()<|python_end|>.",
        [*call(0, "g", "{}"), Text(".")],
    ),
    "brackets and quotes in strings": (
        """[f(a="it's ) [", b='\\')', c='''a'b"''', d="")]""",
        call(0, "f", """{"a": "it's ) [", "b": "')", "c": "a'b\\"", "d": ""}"""),
    ),
    "another function": ("[Bob(age=3)]", [Text("[Bob(age=3)]")]),
    "a list": (" [1, 2] is a list", [Text(" [1, 2] is a list")]),
    "a link": ("[f](http://f)", [Text("[f](http://f)")]),
    "a list in text": ("So: [f(a=1)]", [Text("So: [f(a=1)]")]),
    "an unfinished name": ("[get_wea", [Text("[get_wea")]),
    "a second call of another function": ("[f(), Bob(a=1)]", [*call(0, "f", "{}"), *call(1, "Bob", '{"a": 1}')]),
    "a list that lacks its end": ("[f(a=1), ", call(0, "f", '{"a": 1}')),
    "cut in the arguments": ("[f(a=1, b=[", [CallOpened(0, "f"), Malformed("[f(a=1, b=[", 0)]),
    "cut in a string": ("[f(), f(a=')'", [*call(0, "f", "{}"), CallOpened(1, "f"), Malformed(", f(a=')'", 1)]),
    "a name for a value": ("[f(a=b)] x", [CallOpened(0, "f"), Malformed("[f(a=b)] x", 0)]),
    "a call for a value": (
        "<|python_start|>[f(a=__import__('os').system('ls'))]<|python_end|>[f()]",
        [
            CallOpened(0, "f"),
            Malformed("<|python_start|>[f(a=__import__('os').system('ls'))]<|python_end|>", 0),
            *call(1, "f", "{}"),
        ],
    ),
    "an argument without a name": ("[f(1)]", [CallOpened(0, "f"), Malformed("[f(1)]", 0)]),
    "brackets that do not match": ("[f(a=[1)]", [CallOpened(0, "f"), Malformed("[f(a=[1)]", 0)]),
    "code between markers": ("<|python_start|>print(1)", [Malformed("<|python_start|>print(1)")]),
    "a line feed in a string": ('[f(a="\n")]', [CallOpened(0, "f"), Malformed('[f(a="\n")]', 0)]),
}

BARE: dict[str, Case] = {
    "all other keys": (
        '{"tool": "get_weather", "location": "shanghai"}',
        call(0, "get_weather", '{"location": "shanghai"}'),
    ),
    "other keys around, byte for byte": (
        ' { "a" :1.0 , "tool": "f",\n"b": [ {} ] } ',
        call(0, "f", '{"a" :1.0, "b": [ {} ]}'),
    ),
    "arguments": (f'{{"name": "f", "arguments": {TRICKY}, "id": 3}}', call(0, "f", TRICKY)),
    "parameters": ('{"parameters": "x", "function": "f"}', call(0, "f", '"x"')),
    "action and its input": ('{"action": "f", "action_input": {"a": 1}}', call(0, "f", '{"a": 1}')),
    "an input that is no object": ('{"tool": "f", "input": "x", "n": 1}', call(0, "f", '{"input": "x", "n": 1}')),
    "a name that is an argument": ('{"name": "Bob", "action": "f"}', call(0, "f", '{"name": "Bob"}')),
    "no arguments": ('{"tool": "f"}', call(0, "f", "{}")),
    "an escaped key and name": (r'{"t\u006fol": "\u0066"}', call(0, "f", "{}")),
    "two objects": ('{"tool": "f"}\n{"tool": "f", "a": 1}', [*call(0, "f", "{}"), *call(1, "f", '{"a": 1}')]),
    "text after a call": ('{"tool": "f"} ok', [*call(0, "f", "{}"), Text(" ok")]),
    "a fence": ('```json\n{"tool": "f", "a": 1}\n```\n', call(0, "f", '{"a": 1}')),
    "a fence around two": (
        '```json\n{"tool": "f"}\n{"tool": "f", "a": 1}\n```\nok',
        [*call(0, "f", "{}"), *call(1, "f", '{"a": 1}'), Text("\nok")],
    ),
    "a fence after a call": (
        '{"tool": "f"}\n```json\n{"tool": "f"}\n```',
        [*call(0, "f", "{}"), *call(1, "f", "{}")],
    ),
    "a fence of code after a call": ('{"tool": "f"}\n```py\nx\n```', [*call(0, "f", "{}"), Text("\n```py\nx\n```")]),
    "a fence without a language": ('\n``` {"tool": "f"}``` ok', [*call(0, "f", "{}"), Text(" ok")]),
    "a fence that lacks its end": ('```tool_call\n{"tool": "f"}\n``', call(0, "f", "{}")),
    "a fence of code": ("```python\nf({})\n```", [Text("```python\nf({})\n```")]),
    "a fence of another object": (' ```json\n{"a": 1}\n``` ok', [Text(' ```json\n{"a": 1}\n``` ok')]),
    "another function": ('{"tool": "Bob", "name": "f"} !', [Text('{"tool": "Bob", "name": "f"} !')]),
    "a name that is no string": ('{"tool": ["f"]}', [Text('{"tool": ["f"]}')]),
    "a key twice": ('{"tool": "f", "a": 1, "a": 2}', [Text('{"tool": "f", "a": 1, "a": 2}')]),
    "an object in text": ('So: {"tool": "f"}', [Text('So: {"tool": "f"}')]),
    "no JSON": ("{tool: f}", [Text("{tool: f}")]),
    "unfinished": (' {"tool": "f", "a": 1', [Text(' {"tool": "f", "a": 1')]),
    "ticks alone": ("``", [Text("``")]),
    "an empty object": ("{}", [Text("{}")]),
}

MARKED: dict[str, tuple[str, Case]] = {
    f"{form}: {name}": (form, case)
    for form, cases in {
        "hermes": HERMES | HERMES_STRICT,
        "llama3": LLAMA3,
        "mistral": MISTRAL,
        "pythonic": PYTHONIC,
        "bare": BARE,
    }.items()
    for name, case in cases.items()
}

FORCED: dict[str, tuple[Callable[[], ToolParser], str, list[ParserEvent]]] = {
    "list: two calls": (
        ListParser,
        f' [ {{"name": "f", "arguments": {TRICKY}}} ,\n{{"arguments": {{}}, "name": "g"}} ] ',
        [*call(0, "f", TRICKY), *call(1, "g", "{}")],
    ),
    "list: one object": (ListParser, '{"name": "f", "arguments": {"a": []}}\n', call(0, "f", '{"a": []}')),
    "list: no text": (ListParser, "", [Malformed("")]),
    "list: cut between calls": (ListParser, '[{"name": "f"}, ', [*call(0, "f", "{}"), Malformed(", ")]),
    "list: cut in the second call": (
        ListParser,
        '[{"name": "f"}, {"name": "g", "arguments": {"a',
        [
            *call(0, "f", "{}"),
            CallOpened(1, "g"),
            CallArguments(1, '{"a'),
            Malformed(', {"name": "g", "arguments": {"a', 1),
        ],
    ),
    "list: text": (ListParser, "Sorry.", [Malformed("Sorry.")]),
    "list: an object after the object": (ListParser, '{"name": "f"}]', [*call(0, "f", "{}"), Malformed("]")]),
    "list: no call within": (ListParser, '[{"a": 1}]', [Malformed('[{"a": 1}]')]),
    "named: arguments": (named, TRICKY, call(0, "f", TRICKY)),
    "named: white space around": (named, f"\n {TRICKY} \n", call(0, "f", TRICKY)),
    "named: a number": (named, "12", call(0, "f", "12")),
    "named: no text": (named, " ", [Malformed(" ")]),
    "named: unfinished": (
        named,
        '{"a": "b\\',
        [CallOpened(0, "f"), CallArguments(0, '{"a": "b\\'), Malformed('{"a": "b\\', 0)],
    ),
    "named: more after the arguments": (named, "{} {}", [*call(0, "f", "{}"), Malformed("{}")]),
    "named: text": (named, "Sorry.", [CallOpened(0, "f"), Malformed("Sorry.", 0)]),
}
