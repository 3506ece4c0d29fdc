"""The terminal application. Shows state, sends intents. No model, no SQL, no jax."""
