"""Cost of a step: operators, times, power, memory."""
