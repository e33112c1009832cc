"""What is known: metrics, fault codes, limits and policy, as YAML packs behind a schema."""
