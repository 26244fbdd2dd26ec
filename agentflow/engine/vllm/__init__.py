"""vLLM, embedded: the only place that imports it, and it does so only while an engine starts (never at import)."""
