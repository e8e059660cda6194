"""What is asked of the engine: its version, parallel sizes, kernel backends, flags and variables."""
