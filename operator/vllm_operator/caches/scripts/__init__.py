"""Programs that run in Pods of their own, as text. They use nothing but Python's standard library."""
