"""`gpuwarden bench`: each part measured alone, against its reference, in one run, on synthetic answers."""
