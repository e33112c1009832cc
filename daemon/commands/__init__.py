"""The commands of `gpuwarden`, one module each: functions over streams and values, which `daemon.cli` wires up."""
