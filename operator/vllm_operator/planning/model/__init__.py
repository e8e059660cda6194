"""Facts about the model, each with its source."""
