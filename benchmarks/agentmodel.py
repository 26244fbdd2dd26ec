"""The random 2-layer model with a chat template that knows tools, so that every way to run an agent reads the same prompts."""

from __future__ import annotations

from pathlib import Path

from benchmarks import randommodel

TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call functions, which are listed here:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Answer with a JSON object for each call, as in <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def build(tokenizer_from: Path, folder: Path) -> Path:
    """Write the model into `folder`, with the tokenizer of `tokenizer_from`."""
    randommodel.build(tokenizer_from, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
