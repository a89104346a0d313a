"""The torch backend."""

import os

# torch's CPU threads spin while they wait for each other. If another process holds one of the cores, the
# others spin until it lets go, at every operation, and training becomes many times slower. So they spin only
# briefly before they sleep. OpenMP reads this when torch is imported, so it stands before.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
