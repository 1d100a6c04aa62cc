"""NVIDIA cards: what NVML says of them, which one a child sees, and whether the server can run on it."""
