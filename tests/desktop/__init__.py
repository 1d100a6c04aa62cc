"""Tests on a real X11 desktop, made for each test."""
