"""One OpenAI-compatible endpoint for local editors, SDKs and scripts."""
