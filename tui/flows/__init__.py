"""Flows of several steps: plans, other machines, answers, questions."""
