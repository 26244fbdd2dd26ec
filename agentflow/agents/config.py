"""The agents' sections of the configuration. Frozen; acu/config alone reads a file or the environment."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from agentflow.config import SamplingConfig, Seconds
from agentflow.router import Thresholds

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.*-]{1,128}$")]


class AgentLimits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one run of an agent may take. A run that reaches a limit ends as `incomplete`, and says which it was."""

    steps: Annotated[int, Meta(description="Generations of a run.", ge=1, le=1000)] = 12
    tokens: Annotated[int, Meta(description="Tokens that a run may generate, over all its steps.", ge=1)] = 8192
    wall_s: Annotated[Seconds, Meta(description="Seconds that a run may take, tools and waiting included.")] = 600.0
    tool_s: Annotated[
        Seconds, Meta(description="Longest time in seconds of one tool call, whatever the tool itself allows.")
    ] = 120.0
    parallel_tools: Annotated[int, Meta(description="Tool calls of a run at a time; more wait.", ge=1, le=256)] = 8
    approval_s: Annotated[
        float,
        Meta(
            description="Seconds that a call waits for a person. Then it is not allowed, and the model is told so.",
            gt=0,
            le=31_536_000,
        ),
    ] = 604_800.0


class MemoryConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an agent remembers from run to run, for each tenant apart. Off by default."""

    name: Annotated[
        Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")] | None,
        Meta(
            description="Name of the memory. Agents that name the same one share it. null: the agent's own, by its key."
        ),
    ] = None
    recall: Annotated[
        bool,
        Meta(description="Search the memory before a run's first step, and show the model what fits the user's turn."),
    ] = False
    recall_ms: Annotated[
        float,
        Meta(description="Milliseconds that this may take. What is not ready by then is left out.", gt=0, le=10_000),
    ] = 50.0
    recall_count: Annotated[int, Meta(description="Memories that a run is shown at most.", ge=1, le=20)] = 5
    recall_floor: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(
            description="Least cosine of a memory's vector and that of the user's turn: what is below it is not shown. "
            "The default suits all-minilm-l6-v2: with it, of English turns and memories, 21 of 24 that "
            "belong together pass, and 37 of 792 that do not. Models whose cosines are all high (e5) need a "
            "higher one. Not applied where words alone are searched. A turn or memory in Chinese has to share a word "
            "with the other besides, where the model is measured not to know Chinese, which is once for a memory, when "
            "the first such text is remembered: with all-minilm-l6-v2, which does not, 21 of 24 that belong together "
            "pass, and 3 of 552 others; by the cosine alone all do. null: none."
        ),
    ] = 0.2
    remember: Annotated[
        Literal["turns", "notes", "none"],
        Meta(
            description="What is kept. turns: the user's turn and the answer of each stored run, results of tools for as long as "
            "they hold, and notes; notes: what the tool `memory_write` notes; none: nothing."
        ),
    ] = "none"
    ttl_days: Annotated[
        Annotated[float, Meta(gt=0, le=36_525)] | None,
        Meta(description="Days after which a memory is gone. null: never."),
    ] = None


class AgentConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One agent. Clients reach it as the model `agent/KEY`."""

    model: Annotated[str, Meta(description="Model that speaks: a key of `models`, or a name of one.", min_length=1)] = (
        "large"
    )
    small_model: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Model that fills in the arguments of a tool that is clearly wanted. null: `models.small` where there is "
            "one, else the agent's model does that too."
        ),
    ] = None
    routing: Annotated[
        bool,
        Meta(
            description="Decide for each turn whether it needs a tool, and which, before any model reads it. false: the model "
            "is told of all tools, and decides."
        ),
    ] = True
    answer: Annotated[
        Literal["model", "result"],
        Meta(
            description="What follows a call that the router chose. model: the model reads the result and answers; result: the "
            "result is the answer, word for word, or why there is none, which is right for models too small to repeat it."
        ),
    ] = "model"
    no_tool: Annotated[
        Literal["answer", "refuse"],
        Meta(
            description="What a turn gets for which the router finds no tool. answer: the model answers, and a small one "
            "invents what it does not know; refuse: a sentence that shows what the agent's tools are asked, and no model "
            "speaks, with `answer: result` also where the router is not sure of one tool. A request that brings tools of "
            "its own, or says which to call, is not refused."
        ),
    ] = "answer"
    thresholds: Annotated[Thresholds, Meta(description="When the router is sure.")] = Thresholds()
    instructions: Annotated[
        str,
        Meta(
            description="What the agent is told before every conversation, in front of a client's own system message."
        ),
    ] = ""
    tools: Annotated[
        tuple[ToolName, ...],
        Meta(description="Tools that it may use. A name that ends in `*` stands for all that begin so."),
    ] = ()
    tool_mode: Annotated[
        Literal["overlap", "inject"],
        Meta(
            description="What happens when a call is whole. overlap: it starts, and the model goes on speaking; inject: it "
            "starts, and the model is stopped until the result is there."
        ),
    ] = "overlap"
    limits: AgentLimits = AgentLimits()
    memory: MemoryConfig = MemoryConfig()
    sampling: Annotated[
        SamplingConfig,
        Meta(description="What a request that leaves it open gets; what is unset here, the model's own."),
    ] = SamplingConfig()
