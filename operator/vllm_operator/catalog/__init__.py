"""What is known, and from where: data, each file of it with a typed loader. Pure but for reading these files, once.

Where to look, by subject (`data/` has the knowledge itself):

    machines      gpus, images
    vLLM          versions, kernels (where a backend works), invocations (how it is asked for), caches
    models        models, facts
    decisions     rules, rule_matching (when a rule applies), priming
    starts        stages, logged_names; startup is stages and crashes together
    crashes       signatures, remedies, templates (how their texts are filled in)
    of the user   user_texts, user_rules, rule_checks, user_signatures, signature_checks, linear_patterns
    everything    loader; resources reads the files, paths says where things are in the container
"""
