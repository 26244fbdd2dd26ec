# ruff: noqa: RUF001 - DeepSeek's markers have wide bars
"""Where calls stand in the formats that vLLM's tool parsers read, by vLLM's names for them.

This is what must be known without vLLM: what a model may be said to write, which markers the engine must show, and how to find a
call in the text. What stands between the markers is vLLM's to read (engine/vllm/toolparsers.py). Formats that formats.py has
are not here; nor are those whose parser in vLLM loses arguments without a word, or takes more than linear time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from agentflow.parsing.wholecalls import Shape

PREFIX: Final = "vllm:"

_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DSML_PARAMETER = (("<｜DSML｜parameter", "</｜DSML｜parameter>"),)
_PARAMETER = (("<parameter", "</parameter>"),)
_FUNCTION = (("<function=", "</function>"), ("<parameter=", "</parameter>"))

_DEEPSEEK = Shape("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "arguments", section=_DEEPSEEK_SECTION, special=True)
_GLM = Shape("<tool_call>", "</tool_call>", "tags", tags=(("<arg_key>", "</arg_value>"),), special=True)
_QWEN = Shape("<tool_call>", "</tool_call>", "tags", tags=_FUNCTION, special=True)
_JSON_LIST = Shape("<tool_calls>", "</tool_calls>", "call", special=True)


def _dsml(section: str) -> Shape:
    """DeepSeek's mark-up, whose section has one name or the other."""
    around = (f"<｜DSML｜{section}>", f"</｜DSML｜{section}>")
    opener, closer = "<｜DSML｜invoke", "</｜DSML｜invoke>"
    return Shape(opener, closer, "tags", tags=_DSML_PARAMETER, section=around, special=True)


SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "deepseek_v3": _DEEPSEEK,
        "deepseek_v31": _DEEPSEEK,
        "deepseek_v32": _dsml("function_calls"),
        "deepseek_v4": _dsml("tool_calls"),
        "dots": Shape(
            "<invoke name",
            "</invoke>",
            "tags",
            tags=_PARAMETER,
            section=("<dots_function_call>", "</dots_function_call>"),
            special=True,
        ),
        "glm45": _GLM,
        "glm47": _GLM,
        "granite": Shape("<|tool_call|>", None, "call", special=True),
        "granite-20b-fc": Shape("<function_call>", None, "call", special=True),
        "hunyuan_a13b": _JSON_LIST,
        "internlm": Shape("<|action_start|><|plugin|>", "<|action_end|>", "call", special=True),
        "jamba": _JSON_LIST,
        "kimi_k2": Shape(
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            "arguments",
            section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            special=True,
        ),
        "ling3": _GLM,
        "longcat": Shape("<longcat_tool_call>", "</longcat_tool_call>", "call", special=True),
        "mimo": _QWEN,
        "minimax_m2": Shape(
            "<invoke name=",
            "</invoke>",
            "tags",
            tags=_PARAMETER,
            section=("<minimax:tool_call>", "</minimax:tool_call>"),
            special=True,
        ),
        "phi4_mini_json": Shape("functools[", None, "call"),
        "qwen3_coder": _QWEN,
        "qwen3_xml": _QWEN,
        "seed_oss": Shape("<seed:tool_call>", "</seed:tool_call>", "tags", tags=_FUNCTION, special=True),
        "step3p5": _QWEN,
        "xlam": Shape("<tool_call>", "</tool_call>", "call", bare="["),
    }
)

IN_TEMPLATES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")),
    ("deepseek_v32", ("｜DSML｜", "function_calls")),
    ("deepseek_v4", ("｜DSML｜", "tool_calls>")),
    ("kimi_k2", ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>")),
    ("minimax_m2", ("<minimax:tool_call>", "<invoke name=")),
    ("seed_oss", ("<seed:tool_call>", "<function=")),
    ("granite", ("<|tool_call|>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("dots", ("<dots_function_call>",)),
    ("internlm", ("<|action_start|>", "<|plugin|>", "<|action_end|>")),
    ("glm45", ("<tool_call>", "<arg_key>", "<arg_value>")),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
)
"""By which texts in a chat template a format is known, all of them together; the first that fits."""


def detect(template: str) -> str | None:
    """The format, with its prefix, that a chat template shows; None where it shows none of these."""
    found = (name for name, texts in IN_TEMPLATES if all(text in template for text in texts))
    name = next(found, None)
    return None if name is None else PREFIX + name
