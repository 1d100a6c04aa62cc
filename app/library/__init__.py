"""The models of this machine: found in folders, kept as values, asked for by name."""
