"""Reports: self-contained HTML pages."""
