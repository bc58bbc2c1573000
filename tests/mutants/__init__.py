"""Planted bugs, one at a time, outside the shipped package: each must turn something red."""
