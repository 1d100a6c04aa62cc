"""Who serves a turn: the schedule decides, the host acts."""
