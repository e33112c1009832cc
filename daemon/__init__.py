"""The process: command line, configuration, loop, poller, ledger and reports. All I/O but Kubernetes' lives here."""
