"""The wire: OpenAI's JSON on one side, agentflow's values on the other. Nothing is decided here."""
