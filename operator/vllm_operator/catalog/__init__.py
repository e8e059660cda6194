"""Knowledge with sources: data files, and a model for each file that validates it. Pure, except that it reads these files.

Modules by subject (the data is in `data/`):

    all files     entry (reading, the form of an entry, messages about mistakes), loader (everything at once)
    machines      gpus (and images)
    vLLM          versions, builds (tables read from images), caches (directories of an engine, priming), backends (where each works, its
                  settings, answers of selectors)
    models        models (families, and sizes of well-known ones), memory (other memory of an engine)
    decisions     rules, rule_matching (when a rule applies), notes (texts of a plan)
    starts        startup (lines of a start, crashes with remedies), error_forms (how errors look), templates (how texts are filled in)
    of the user   user_entries: custom rules, signatures and node pools from ConfigMaps
"""
