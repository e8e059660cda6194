"""The commands plan and diagnose: the pure rooms without a cluster."""
