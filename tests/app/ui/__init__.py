"""Tests of the tray and its window, on Qt's offscreen platform."""
