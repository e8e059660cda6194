"""The running operator: when things happen, and what is kept in memory.

one object   reconciler, cache_reconciler (with claim_sharing), exposure_reconciler and scaling_reconciler (with optional_objects and
             created_objects),
             plan_store, presets, free_devices, observation_reader (with drain_reader), model_configs, status_writer
the queue    watches, cache_updater, queue, workers
logs         followers (of all Pods), follower (of one run of a container), container_runs, log_stream, run_log (what was read of a
             run), log_lines, log_share (how much is parsed, and whose turn it is), log_slots (how many are open)
the process  leadership, preconditions, permissions, user_data, health, metrics, log_output
"""
