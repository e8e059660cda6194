"""From what is observed to status, conditions and events. Pure."""
