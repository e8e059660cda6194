"""The model hub: reads configs and headers of weights. The only package that sends requests to it."""
