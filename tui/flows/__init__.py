"""What takes several steps: plans, other machines, answers, questions."""
