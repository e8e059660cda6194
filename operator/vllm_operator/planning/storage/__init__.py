"""Where weights and caches are kept, which starts share a cache, and what is being done about it."""
