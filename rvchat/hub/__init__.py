"""Models: the catalogue, what fits this machine, download, verify, remove. No jax."""
