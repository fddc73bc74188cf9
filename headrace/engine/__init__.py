"""What vLLM loads from headrace: parts of an engine that LMCache does not have."""
