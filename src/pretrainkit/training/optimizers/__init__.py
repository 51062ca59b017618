"""Optimizers, their settings and schedules."""
