"""The running operator: scheduling, I/O and state in memory.

one object   reconciler: observe, decide, act, report
             observe reads with plan_store, model_configs, build_reader, inventory_reader
             act writes with plan_store, build_reader, apply, optional_objects; ownership says what belongs to the operator
the queue    watches, object_cache (and its updater), queue, reconciler (its workers)
logs         log_followers (of all Pods), log_follower (of one run of a container), log_share (of open streams and of CPU time),
             observed_pods (of other tools)
the process  app (starts and stops all parts), settings, leadership, preconditions (with permissions), user_data, metrics (and probes),
             log_output
"""
