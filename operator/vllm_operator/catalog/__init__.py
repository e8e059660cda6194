"""What is known, and from which source: data, and for each file of it a model that validates it. Pure, except that it reads these files.

Where to look, by subject (`data/` has the knowledge itself):

    all files     entry (how an entry is written, and what is said about a mistake), resources (reading), loader (everything at once)
    machines      gpus, images; paths (directories inside the container)
    vLLM          versions, kernels (where a backend works), invocations (how it is requested), caches (and priming)
    models        models
    decisions     rules, rule_matching (when a rule applies)
    starts        stages, logged_names; startup is stages and crashes together
    crashes       signatures, remedies, templates (how their texts are filled in)
    of the user   user_texts, user_rules, rule_checks, user_signatures, signature_checks, linear_patterns
"""
