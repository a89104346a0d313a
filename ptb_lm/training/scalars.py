"""TensorBoard's file of a run: scalars, the configuration as text, the hyper-parameters.

Written with TensorBoard's own messages and record format, but without its writer classes: those import
TensorFlow if it is installed.
"""

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from ptb_lm.common import files
from ptb_lm.training import summaries

_COUNT = itertools.count()  # of the event files of this process


class Scalars:
    """A TensorBoard event file.

    Args:
        folder: Where the event file goes.
        purge_step: When a run is resumed: what an earlier file holds from this step on is void.
    """

    def __init__(self, folder: Path, *, purge_step: int | None = None) -> None:
        # Process id and count keep two files of one second apart.
        unique = f"{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_COUNT):04}"
        self._path = folder / f"events.out.tfevents.{unique}"
        self._file = self._path.open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=purge_step, session_log=start))

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars by tag, and flush them."""
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()])
        self._write(Event(wall_time=time.time(), step=step, summary=summary))

    def begin(self, config: Mapping[str, Any], step: int) -> None:
        """Write a run's configuration: for the hparams plugin, and as text.

        Args:
            config: As config.json has it.
            step: Where the run begins, or goes on.
        """
        values = [summaries.text("config", config), summaries.session_start(config, time.time())]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def end(self, step: int) -> None:
        """Write for the hparams plugin that the run has ended."""
        values = [summaries.session_end(time.time())]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        with files.name_in_errors(self._path):  # what a full disk refused is tried again
            self._file.close()

    def _write(self, event: Event) -> None:
        with files.name_in_errors(self._path):
            self._records.write(event.SerializeToString())
            self._file.flush()
