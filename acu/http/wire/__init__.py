"""Request and response bodies of the OpenAI API, and their translation to and from agentflow's values."""
