"""TF_CONFIG: the variable that tells a process of TensorFlow the addresses of all, and its own place."""

import json
import os
from typing import Any, NamedTuple

from ptb_lm.common.errors import UserError

TRAINING_JOBS = ("chief", "worker")  # the others serve or watch


class TfConfig(NamedTuple):
    """The content of TF_CONFIG.

    Attributes:
        processes: The number of processes that train together; 0 if it lists none.
        job: The job of this process: one of TRAINING_JOBS, or another; "" if it does not say.
    """

    processes: int
    job: str


def tf_config() -> TfConfig:
    """Return the content of TF_CONFIG, which is empty if the variable is not set.

    Raises:
        UserError: It is malformed.
    """
    try:
        whole = json.loads(os.environ.get("TF_CONFIG") or "{}")
        cluster, task = _part(whole, "cluster", dict), _part(whole, "task", dict)
        job, index = task.get("type"), int(task["index"]) if "type" in task else 0
        processes = sum(len(_part(cluster, job, list)) for job in TRAINING_JOBS)
        if processes and job in TRAINING_JOBS and not 0 <= index < len(_part(cluster, job, list)):
            raise UserError(f"TF_CONFIG lists no {job} of the index {index}")
    except (ValueError, TypeError, AttributeError, KeyError):
        raise UserError(
            'TF_CONFIG is malformed; it should look like {"cluster": {"worker": ["HOST:PORT", ...]}, "task": '
            '{"type": "worker", "index": 0}}'
        ) from None
    return TfConfig(processes, str(task.get("type", "")))


def _part(whole: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """Return a part of an object of JSON, empty if it is missing or null.

    Raises:
        AttributeError, TypeError: The object or its part is of another kind.
    """
    part = whole.get(name)
    if part is None:
        return kind()
    if not isinstance(part, kind):
        raise TypeError(name)
    return part
