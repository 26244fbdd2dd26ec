"""Cards: what the router knows of each tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

if TYPE_CHECKING:
    from agentflow.tools.tool import ToolSpec


class ToolCard(Struct, frozen=True, kw_only=True):
    """A tool as the router sees it: a part of its ToolSpec.

    `examples`: whole texts of users that want it, in each language that it should be found in. `aliases`: words and phrases that
    speak for it wherever they stand. `openers`: those that do so only where a turn begins. `parameters`: its JSON schema.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    examples: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: ToolSpec) -> Self:
        """The card of a tool."""
        return cls(
            name=spec.name,
            description=spec.description,
            parameters=spec.parameters,
            examples=spec.examples,
            aliases=spec.aliases,
        )

    def fields(self) -> list[str]:
        """What the parameters are called, and said to be. A schema of another form gives nothing."""
        properties = self.parameters.get("properties")
        if not isinstance(properties, dict):
            return []
        said = [schema.get("description") for schema in properties.values() if isinstance(schema, dict)]
        return [*map(str, properties), *(text for text in said if isinstance(text, str))]
