"""Summaries for TensorBoard's plugins for text and hyper-parameters."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import metadata as of_hparams
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text import metadata as of_text

from ptb_lm.common import streams
from ptb_lm.common.tables import write_markdown


def text(tag: str, config: Mapping[str, Any]) -> Summary.Value:
    """Return a configuration as a table in Markdown, which is how TensorBoard shows a text."""
    table = write_markdown(["name", "value"], ([name, json.dumps(value)] for name, value in _flat(config)))
    return Summary.Value(
        tag=tag,
        metadata=of_text.create_summary_metadata(display_name="", description=""),
        tensor=TensorProto(dtype=DT_STRING, tensor_shape=TensorShapeProto(), string_val=[table.encode()]),
    )


def session_start(config: Mapping[str, Any], seconds: float) -> Summary.Value:
    """Return a run's hyper-parameters.

    Args:
        config: As config.json has it.
        seconds: When it starts, by time.time.
    """
    info = SessionStartInfo(start_time_secs=seconds)
    for name, value in _flat(config):
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[name].number_value = value
        else:
            info.hparams[name].string_value = streams.escape_controls(str(value))  # a path may be no UTF-8
    data = HParamsPluginData(session_start_info=info)
    return _of_hparams(of_hparams.SESSION_START_INFO_TAG, data)


def session_end(seconds: float) -> Summary.Value:
    """Return that a run has ended, at some time by time.time."""
    info = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=seconds)
    return _of_hparams(of_hparams.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info))


def _of_hparams(tag: str, data: HParamsPluginData) -> Summary.Value:
    metadata: SummaryMetadata = of_hparams.create_summary_metadata(data)
    return Summary.Value(tag=tag, metadata=metadata, tensor=of_hparams.NULL_TENSOR)


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values, with those of an inner mapping at the same level."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value
