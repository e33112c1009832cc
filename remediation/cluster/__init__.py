"""The hands on Kubernetes: the only modules that talk to an API server. The daemon calls them; what decides never does.

`client` speaks HTTP and JSON through `wire`, `answers` says what the server meant, `parse` and `view` make the values
of `remediation.objects` from it.
"""
