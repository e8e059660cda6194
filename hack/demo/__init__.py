"""`make demo`: four situations on a real control plane, with simulated nodes and recorded starts."""
