"""The engine room: tokens in, tokens out. No business rule, tool or state lives here."""
