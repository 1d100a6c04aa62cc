"""Windows, predictions and footprints of memory."""
