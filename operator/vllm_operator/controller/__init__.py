"""The running operator: scheduling, I/O and state in memory.

one object   reconciler, cache_reconciler (with claim_sharing), exposure_reconciler and scaling_reconciler (with optional_objects and
             created_objects),
             plan_store, presets, free_devices, observation_reader (with drain_reader), model_configs, status_writer
the queue    watches, object_cache (and its updater), queue, workers
logs         followers (of all Pods), follower (of one run of a container), container_runs, log_stream, run_log (the log of one run),
log_lines, log_share (CPU time for parsing), log_slots (open streams)
the process  leadership, preconditions (with permissions), user_data, health, metrics, log_output
"""
