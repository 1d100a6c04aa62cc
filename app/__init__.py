"""What people and tools touch: the tray, the endpoint, the command line."""

__version__ = "0.1.0"
