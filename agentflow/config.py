"""The orchestrator's sections of the configuration. Frozen; acu/config alone reads a file or the environment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Share = Annotated[float, Meta(gt=0, le=1)]
ContextLength = Annotated[int, Meta(ge=16)]
Sequences = Annotated[int, Meta(ge=1, le=4096)]
StepTokens = Annotated[int, Meta(ge=32)]
Mebibytes = Annotated[
    int, Meta(ge=16, le=1 << 30)
]  # a pebibyte: more than any box has, and fewer bytes than int64 counts
ToolFormat = Literal[
    "auto",
    "hermes",
    "llama3",
    "mistral",
    "pythonic",
    "bare",
    "none",
    "vllm:deepseek_v3",
    "vllm:deepseek_v31",
    "vllm:deepseek_v32",
    "vllm:deepseek_v4",
    "vllm:dots",
    "vllm:glm45",
    "vllm:glm47",
    "vllm:granite",
    "vllm:granite-20b-fc",
    "vllm:hunyuan_a13b",
    "vllm:internlm",
    "vllm:jamba",
    "vllm:kimi_k2",
    "vllm:ling3",
    "vllm:longcat",
    "vllm:mimo",
    "vllm:minimax_m2",
    "vllm:phi4_mini_json",
    "vllm:qwen3_coder",
    "vllm:qwen3_xml",
    "vllm:seed_oss",
    "vllm:step3p5",
    "vllm:xlam",
]
"""How a model writes tool calls; those with a prefix are read by vLLM's parser of that name."""


class SamplingConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a model's tokens are chosen where a request leaves it open. None: nothing is said about it here."""

    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        Meta(description="Higher values choose less likely tokens more often; 0 takes the likeliest. Unset: 1."),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="Choose among the likeliest tokens that have this probability together. Unset: 1, all."),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None,
        Meta(description="Choose among so many of the likeliest tokens; 0 or -1: among all. Unset: 0."),
    ] = None
    min_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Leave out tokens less likely than this part of the likeliest one's probability. Unset: 0."),
    ] = None
    presence_penalty: Annotated[
        Annotated[float, Meta(ge=-2, le=2)] | None,
        Meta(description="Taken off the score of every token that the answer already has. Unset: 0."),
    ] = None
    frequency_penalty: Annotated[
        Annotated[float, Meta(ge=-2, le=2)] | None,
        Meta(description="Taken off a token's score for each time that the answer already has it. Unset: 0."),
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=10)] | None,
        Meta(description="Above 1: tokens that the prompt or the answer already has become less likely. Unset: 1."),
    ] = None


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model that is served. Its key under `models` (large, small, embed, ...) is its role and an alias."""

    model: Annotated[
        str,
        Meta(description="Catalogue name (`acu models list`), path of a local folder, or hub id.", min_length=1),
    ]
    role: Annotated[
        Literal["chat", "embed"] | None,
        Meta(description="What the model is for. Default: embed for the key `embed`, chat for any other."),
    ] = None
    engine: Annotated[
        Literal["vllm", "encoder", "scripted"] | None,
        Meta(
            description="What runs it: vllm; encoder (a sentence encoder in a thread of the daemon); scripted (a "
            "deterministic engine with no model). Default: vllm for chat, encoder for embed."
        ),
    ] = None
    served_name: Annotated[
        str | None,
        Meta(
            description="Name that clients ask for. Default: the last part of `model`, which is an alias in any case, unless "
            "another model has that name: one model can be served twice, with other settings and names."
        ),
    ] = None
    aliases: Annotated[tuple[str, ...], Meta(description="Further names that clients may ask for.")] = ()
    max_model_len: Annotated[
        ContextLength | None,
        Meta(description="Context in tokens, prompt and answer together. Default: the model's own, within memory."),
    ] = None
    max_running: Annotated[
        Sequences | None,
        Meta(description="Sequences generated at a time. Default: 64 on a CPU, 128 on a GPU."),
    ] = None
    max_batched_tokens: Annotated[
        StepTokens | None,
        Meta(
            description="Tokens in one engine step; longer prefills are cut into chunks of this size so that one of them "
            "does not hold up everybody. Default: 512 on a CPU, 2048 on a GPU.",
        ),
    ] = None
    kv_cache_mb: Annotated[
        Mebibytes | None,
        Meta(
            description="Size of the KV pool in MiB. Default: gpu.kv_cache_size_mb on a GPU, within free memory on a CPU."
        ),
    ] = None
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        Meta(description="Type of weights and activations. auto: by what the processor computes fastest."),
    ] = "auto"
    tool_format: Annotated[
        ToolFormat,
        Meta(
            description="How the model writes tool calls. auto: read off its chat template; hermes if that knows no tools. "
            "bare: any JSON object that names a tool. vllm:NAME: read by vLLM's tool parser NAME, call by call; vLLM must be "
            "installed, whichever engine runs the model."
        ),
    ] = "auto"
    chat_template: Annotated[
        str | None, Meta(description="File with a Jinja chat template that replaces the model's own.")
    ] = None
    script: Annotated[
        str | None, Meta(description="File with the answers of the scripted engine (see examples/script.yaml).")
    ] = None
    engine_args: Annotated[
        dict[str, Any],
        Meta(
            description="Further arguments for vLLM's AsyncEngineArgs, as they are; they win over ACU's choices. What the plan "
            "of memory cannot hold is refused (docs/memory.md)."
        ),
    ] = {}
    sampling: Annotated[
        SamplingConfig,
        Meta(
            description="What a request that does not say otherwise gets. A value that is unset here is the one in the "
            "model's generation_config.json, else OpenAI's."
        ),
    ] = SamplingConfig()


class SchedulerConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Admission: who waits, for how long, and when to say no."""

    queue_limit: Annotated[
        int,
        Meta(description="Requests that may wait, over all models. One more is refused with 429.", ge=1, le=100_000),
    ] = 1024
    queue_tokens: Annotated[
        int, Meta(description="Prompt tokens that may wait, over all models. More are refused with 429.", ge=1)
    ] = 4_000_000
    deadline_s: Annotated[
        Seconds, Meta(description="Seconds that a request waits for an engine before it is refused with 504.")
    ] = 120.0
    ageing_s: Annotated[
        Seconds, Meta(description="Waiting this many seconds counts as much as one step of priority.")
    ] = 10.0
    slow_reader_s: Annotated[
        Seconds, Meta(description="Seconds that an answer may go unread by its client before it is aborted.")
    ] = 60.0
    stall_timeout_s: Annotated[
        Seconds, Meta(description="Seconds with work and no token after which an engine counts as dead.")
    ] = 60.0
    start_timeout_s: Annotated[
        Seconds, Meta(description="Seconds that an engine may take to start before the start counts as failed.")
    ] = 1200.0
    restart_backoff_s: Annotated[
        Seconds, Meta(description="Seconds before the first restart of a failed engine; doubles with each failure.")
    ] = 1.0
    restart_backoff_max_s: Annotated[Seconds, Meta(description="Longest wait in seconds between two restarts.")] = 60.0
    idle_prefixes: Annotated[
        int,
        Meta(
            description="Prompts that the engines keep for runs that wait (for tools, for people) or have ended. One more, "
            "and the oldest is forgotten.",
            ge=0,
            le=100_000,
        ),
    ] = 128
    idle_prefix_s: Annotated[
        Seconds, Meta(description="Seconds after which such a prompt is forgotten, if no run goes on from it.")
    ] = 600.0
    kv_watermark: Annotated[
        Share,
        Meta(
            description="Share of the KV pool that running requests and idle prompts may have together. Above it idle prompts "
            "are forgotten, those that were left the longest ago first."
        ),
    ] = 0.95
    kv_release: Annotated[
        Share, Meta(description="Share of the idle prompts that are forgotten when kv_watermark is passed.")
    ] = 0.30
    kv_watch_s: Annotated[Seconds, Meta(description="Seconds between two looks at the KV pool.")] = 5.0
    max_choices: Annotated[
        int, Meta(description="Largest `n` (answers a request), and prompts a completion request.", ge=1, le=128)
    ] = 16
    grammar_max_bytes: Annotated[
        int, Meta(description="Largest schema, regular expression or grammar of a request, in bytes.", ge=256)
    ] = 65_536
    grammar_max_depth: Annotated[
        int, Meta(description="Deepest nesting of a schema, or of groups in a regular expression.", ge=4, le=256)
    ] = 32
    grammar_compile_s: Annotated[
        Seconds, Meta(description="Seconds that compiling a schema, regular expression or grammar may take.")
    ] = 10.0
