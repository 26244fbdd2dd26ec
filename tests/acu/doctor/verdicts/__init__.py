"""Tests of the doctor's verdicts."""
