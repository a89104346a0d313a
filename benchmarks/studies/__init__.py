"""Measurements that are no suite: profiles, disturbances and the reliability of the benchmark's numbers."""
