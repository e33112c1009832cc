"""What to do about it: plans and gates as pure functions. In observe mode nothing else of it exists."""
