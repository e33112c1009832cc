"""The node agent: reads the kernel's log on its node, keeps what it said until the controller has it, and sends it.

Small on purpose: nothing in this package may import numpy, pandas, scikit-learn, SQLAlchemy or Kubernetes' client.
"""
