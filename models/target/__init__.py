"""The model of one target: experts, their blend, its interval."""
