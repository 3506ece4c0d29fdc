"""What differs by backend: a reference in plain jax.numpy, and beside it, with the same signature, what is faster."""
