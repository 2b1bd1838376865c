"""What a prediction rests on."""
