"""The tray and its window. Only this package imports Qt; it shows values and forwards intents, no more."""
