"""From a plan to manifests: plain dicts, one small builder per kind. Pure."""
