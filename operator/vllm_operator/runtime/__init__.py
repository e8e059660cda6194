"""The running operator: queue, reconciler, watches, log followers, health, metrics."""
