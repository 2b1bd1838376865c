"""Language models as numbers: what is served or trained."""
