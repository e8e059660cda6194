"""The model hub: `client` reads configs and headers of weights. In the operator's process, only this package sends requests to it."""
