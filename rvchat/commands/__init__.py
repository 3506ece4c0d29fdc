"""What the commands do. Each is imported when it is called."""
