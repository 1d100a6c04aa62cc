"""The tests: real servers, real windows, real clients; fakes only where a system cannot run here."""
