"""A server process's life: spawned, drained, probed, stopped, and never left behind."""
