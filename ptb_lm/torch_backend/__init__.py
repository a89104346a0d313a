"""The torch backend."""
