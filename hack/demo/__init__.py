"""`make demo`: five situations on a real control plane, with simulated nodes and recorded starts."""
