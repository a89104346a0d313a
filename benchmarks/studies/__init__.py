"""Measurements that are no suite: what the benchmark's numbers are made of, and what disturbs them."""
