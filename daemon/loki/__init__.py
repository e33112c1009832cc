"""Kernel logs by way of Loki, for sites that run no agent on their nodes."""
