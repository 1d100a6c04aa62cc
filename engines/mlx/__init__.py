"""The MLX engine: mlx_vlm's server as a child, whose window is a bound that moves while it runs."""
