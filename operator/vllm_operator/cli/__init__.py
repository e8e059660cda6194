"""The commands of `vllm-operator` and `kubectl vllm`. Most of them need no cluster.

commands  plan, create (also import, with `imports`), check, requests (prime, replan), revisions (history, rollback), fit, catalog,
          diagnose, diagnose_pod, status (also top, caches), gpus
common    commands (all arguments), inputs, documents (files), live (a cluster), pasted_logs, scoring (of diagnoses), terminal (output)
"""
