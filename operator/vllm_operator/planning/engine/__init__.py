"""Settings of the engine: version, parallel sizes, backends, flags and variables."""
