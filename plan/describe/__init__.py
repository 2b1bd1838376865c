"""What is planned for: models, formats, systems, layouts, lengths of requests."""
