"""The torch backend."""

import os

# torch's CPU threads spin while they wait for each other. If another process holds one of the cores, the
# others spin until it lets go, at every operation: training becomes ten times slower on two cores. Sleeping
# threads do not. OpenMP reads this when torch is imported, so it stands before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
