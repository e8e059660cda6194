"""The commands plan, catalog and diagnose: the pure rooms for people, most of it without a cluster."""
