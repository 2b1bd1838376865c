"""What a target's model asks: interpolation, the roofline, a smooth process, trees."""
