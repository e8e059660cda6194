"""What is known of the model: its facts, each with where it is from."""
