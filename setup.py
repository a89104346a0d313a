"""Everything about the package is declared in pyproject.toml; this file is for tools that look for it."""

from setuptools import setup

setup()
