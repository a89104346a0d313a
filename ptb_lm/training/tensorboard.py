"""TensorBoard's file of a run: scalars, the configuration as text, the hyper-parameters.

Written with TensorBoard's own messages, but without its writers: those import TensorFlow if it is installed,
or else a stand-in for it that takes a tenth of a second.
"""

import itertools
import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from ptb_lm.common import files, streams
from ptb_lm.common.markdown_tables import write_markdown

_COUNT = itertools.count()  # of the event files of this process
# An empty vector, where only the data of the plugin count.
_NOTHING = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)]))


class EventFile:
    """A TensorBoard event file.

    Args:
        folder: Folder of the event file; None: the null device, in the processes that write no files.
        purge_step: Step from which on the points of an earlier file are void, if a run is resumed.
    """

    def __init__(self, folder: Path | None, *, purge_step: int | None = None) -> None:
        # Process id and count keep two files of one second apart.
        unique = f"{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_COUNT):04}"
        self._path = folder / f"events.out.tfevents.{unique}" if folder else Path(os.devnull)
        self._file = self._path.open("xb" if folder else "wb")
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=purge_step, session_log=start))

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars by tag, and flush them."""
        self._write_values([Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()], step)

    def begin(self, config: Mapping[str, Any], step: int) -> None:
        """Write a run's configuration: for the hparams plugin, and as a table, which it shows as text.

        Args:
            config: Configuration, as config.json has it.
            step: Step where the run begins or continues.
        """
        rows = ([name, json.dumps(value)] for name, value in _flat(config))
        table = write_markdown(["name", "value"], rows).encode()
        text = TensorProto(dtype=DT_STRING, tensor_shape=TensorShapeProto(), string_val=[table])
        self._write_values([_plugin_value("config", "text", b"", text), _session_start(config)], step)

    def end(self, step: int) -> None:
        """Write for the hparams plugin that the run has ended."""
        info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
        content = HParamsPluginData(session_end_info=info).SerializeToString()
        self._write_values([_plugin_value("_hparams_/session_end_info", "hparams", content, _NOTHING)], step)

    def close(self) -> None:
        """Close the file."""
        with files.name_in_errors(self._path):  # what a full disk refused is tried again
            self._file.close()

    def _write_values(self, values: Sequence[Summary.Value], step: int) -> None:
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _write(self, event: Event) -> None:
        with files.name_in_errors(self._path):
            self._file.write(as_record(event.SerializeToString()))
            self._file.flush()


def as_record(data: bytes) -> bytes:
    """Return data as a record of TensorFlow's files: its length and itself, each with a checksum."""
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """Return the CRC-32C of data (RFC 3720, appendix B.4) in the masked form of TensorFlow's records."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_OF_BYTE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
    return byte


_CRC_OF_BYTE = [*map(_crc_of_byte, range(256))]


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
    content = HParamsPluginData(session_start_info=info).SerializeToString()
    return _plugin_value("_hparams_/session_start_info", "hparams", content, _NOTHING)


def _plugin_value(tag: str, plugin: str, content: bytes, tensor: TensorProto) -> Summary.Value:
    data = SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=data), tensor=tensor)


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values, with those of an inner mapping at the same level."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value
