"""The running operator: when what is done, and what is kept in memory meanwhile.

one object        reconciler, cache_reconciler, plan_cache, observation_reader, model_configs
which, and when   watches, kopf_storage, mirroring, queue, workers
logs              followers (which), follower (one), container_runs, log_lines, heartbeats
the process       tasks, leadership, supervisor, permissions, user_data, health, metrics, log_output, loop_errors
"""
