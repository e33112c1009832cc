"""From Prometheus' answers to a snapshot: decode, name, align, and say what is missing."""
