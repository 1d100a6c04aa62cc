"""How an MLX server is spoken to, so that a client notices no difference."""
