"""The running operator: scheduling, I/O and state in memory.

one object   reconciler: observe, decide, act, report
             observe reads with plan_store, presets, model_configs, inventory_reader; report with start_reader
             act writes with plan_store, apply, optional_objects; ownership says what belongs to the operator
the queue    watches, object_cache (and its updater), queue, workers
logs         followers (of all Pods), follower (of one run of a container), container_runs, log_stream, run_log (the log of one run),
log_lines, log_share (CPU time for parsing), log_slots (open streams)
the process  leadership, preconditions (with permissions), user_data, health, metrics, log_output
"""
