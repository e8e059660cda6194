"""The commands plan, catalog and diagnose: the pure packages for people, most of it without a cluster."""
