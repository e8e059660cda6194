"""The commands of `vllm-operator` and `kubectl vllm`. Most of them need no cluster.

commands  plan, create, check, replan, revisions (history, rollback), fit, catalog, diagnose, diagnose_pod, diagnose_ranks, importing (with
          `imports`), status, gpus, prime
common    inputs, documents (files), live (a cluster), pasted_logs, scoring (of diagnoses), terminal (output)
"""
