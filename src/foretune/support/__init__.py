"""What the code of all packages needs beside the nouns: files, lazy imports, progress, hashes."""
