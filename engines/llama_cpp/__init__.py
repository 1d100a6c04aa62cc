"""llama.cpp's llama-server: found, planned for, started, read back."""
