"""TensorBoard's file of a run: scalars, the configuration as text, the hyper-parameters.

Written with TensorBoard's own messages and record format, but without its writer classes: those import
TensorFlow if it is installed.
"""

import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import metadata as hparams_plugin
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from ptb_lm.common import files, streams
from ptb_lm.common.markdown_tables import write_markdown

_COUNT = itertools.count()  # of the event files of this process


class Scalars:
    """A TensorBoard event file, or none in the processes that write no files.

    Args:
        folder: Folder of the event file; None: nothing is written.
        purge_step: Step from which on the points of an earlier file are void, if a run is resumed.
    """

    def __init__(self, folder: Path | None, *, purge_step: int | None = None) -> None:
        self._file: BinaryIO | None = None
        if folder is None:
            return
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
        self._write_values([Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()], step)

    def begin(self, config: Mapping[str, Any], step: int) -> None:
        """Write a run's configuration: for the hparams plugin, and as a table, which it shows as text.

        Args:
            config: Configuration, as config.json has it.
            step: Step where the run begins or continues.
        """
        rows = ([name, json.dumps(value)] for name, value in _flat(config))
        table = text_pb("config", write_markdown(["name", "value"], rows)).value[0]
        self._write_values([table, _session_start(config)], step)

    def end(self, step: int) -> None:
        """Write for the hparams plugin that the run has ended."""
        info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
        data = HParamsPluginData(session_end_info=info)
        self._write_values([_hparams_value(hparams_plugin.SESSION_END_INFO_TAG, data)], step)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with files.name_in_errors(self._path):  # what a full disk refused is tried again
                self._file.close()

    def _write_values(self, values: Sequence[Summary.Value], step: int) -> None:
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        if self._file is not None:
            with files.name_in_errors(self._path):
                self._records.write(event.SerializeToString())
                self._file.flush()


def _session_start(config: Mapping[str, Any]) -> Summary.Value:
    """Return the hyper-parameters of a run that starts now, from its configuration as config.json has it."""
    info = SessionStartInfo(start_time_secs=time.time())
    for name, value in _flat(config):
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[name].number_value = value
        else:
            info.hparams[name].string_value = streams.escape_controls(str(value))  # a path may be no UTF-8
    data = HParamsPluginData(session_start_info=info)
    return _hparams_value(hparams_plugin.SESSION_START_INFO_TAG, data)


def _hparams_value(tag: str, data: HParamsPluginData) -> Summary.Value:
    metadata: SummaryMetadata = hparams_plugin.create_summary_metadata(data)
    return Summary.Value(tag=tag, metadata=metadata, tensor=hparams_plugin.NULL_TENSOR)


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values, with those of an inner mapping at the same level."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value
