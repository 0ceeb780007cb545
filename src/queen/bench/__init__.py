"""Measuring: data, training and speed."""
