"""Tests of what model files say about themselves."""
