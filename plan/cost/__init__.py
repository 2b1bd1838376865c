"""What a step costs: operators, their times and watts, memory."""
