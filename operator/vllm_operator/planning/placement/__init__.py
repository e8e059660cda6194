"""On which GPUs, with which image; or why on none."""
