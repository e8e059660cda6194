"""The running operator: scheduling, I/O and state in memory.

one object   reconciler, cache_reconciler (with claim_sharing), exposure_reconciler and scaling_reconciler (with optional_objects and
             created_objects),
             plan_store, presets, free_devices, observation_reader (with drain_reader), model_configs, status_writer
the queue    watches, object_cache (and its updater), queue, workers
logs         log_followers (of all Pods), log_follower (of one run of a container), log_share (of open streams and of CPU time)
the process  leadership, preconditions (with permissions), user_data, health, metrics, log_output
"""
