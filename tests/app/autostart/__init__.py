"""Tests of starting with the system."""
