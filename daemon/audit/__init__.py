"""The audit: a span of the past through the same detectors, plans and gates, and a report about it."""
