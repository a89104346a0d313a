"""Measurements of this repository beside those that the package offers; not installed with it.

suites.toml and programs.toml add to the suites and programs of ptb_lm.bench, which finds them in a checkout
(ptb_lm/bench/checkout.py); classifier_workloads.py and rivals/ are what they name. published/ has other
people's figures, studies/ measurements that are no suite. Suites that classify sequences use the example's
classifier, examples/sequence_classifier.
"""

import sys
from pathlib import Path

CLASSIFIER = Path(__file__).resolve().parents[1] / "examples" / "sequence_classifier"
if str(CLASSIFIER.parent) not in sys.path:
    sys.path.append(str(CLASSIFIER.parent))
