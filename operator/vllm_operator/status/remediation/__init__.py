"""Decide how to react to an observation. Pure. `decide` is the only place for such decisions.

decision      `Decision`: remedies (suggest, apply, give up, scale to zero), damaged caches, restarts of stalled starts
cache_damage  whether damaged caches cause a crash
changes       the exact change of flags and variables, also as a `kubectl patch` command
in_force      earlier decisions, read from the status
"""
