"""HTTP: the OpenAI-compatible instances, the router in front of them, and all of it on one machine."""
