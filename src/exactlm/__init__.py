"""exactlm: deterministic LLM inference. Same prompt, same bytes."""
