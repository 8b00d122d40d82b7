"""The tests. What is set here holds for the commands that they start as well."""

import os

# pytest runs a worker on each core. A product that numpy divides among threads of its own would
# wait for cores that others have, and its threads spin meanwhile: 76 products of at most 140 by
# 1024 by 130 took 3.3 s of processor time beside other work, and 0.2 s on one thread. numpy and
# torch read this when they are imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
